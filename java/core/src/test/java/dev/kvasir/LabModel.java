package dev.kvasir;

import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Assumptions;

/** Where the trained model "lab-a" is, for tests that are skipped without it. */
public final class LabModel {

  private LabModel() {}

  /** The folder of lab-a; skips the test where it is missing. The system property kvasir.shared names its place. */
  public static Path folder() {
    String property = System.getProperty("kvasir.shared");
    Path found = property == null ? search() : Path.of(property, "models", "lab-a");
    Assumptions.assumeTrue(
        found != null && Files.exists(found.resolve("calib.safetensors")),
        "models/lab-a is in no folder \"shared\" beside the project, nor where kvasir.shared says (" + property + ")");
    return found;
  }

  /** Its geometry. */
  public static KvGeometry geometry() {
    return KvGeometry.builder().layers(8).queryHeads(8).kvHeads(2).headDim(128).build();
  }

  private static Path search() {
    for (Path folder = Path.of("").toAbsolutePath(); folder != null; folder = folder.getParent()) {
      Path candidate = folder.resolve("shared").resolve("models").resolve("lab-a");
      if (Files.exists(candidate)) {
        return candidate;
      }
    }
    return null;
  }
}
