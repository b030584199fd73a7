package dev.kvasir.lab;

import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Assumptions;

/** Where the trained model "lab-a" is, for tests that are skipped without it. */
public final class Shared {

  private Shared() {}

  /** Its folder. The system property kvasir.shared names its place; else folders "shared" beside the project do. */
  public static Path lab() {
    String property = System.getProperty("kvasir.shared");
    Path found = property == null ? search() : Path.of(property, "models", "lab-a");
    Assumptions.assumeTrue(
        found != null && Files.exists(found.resolve("reference_logits.json")),
        "models/lab-a is in no folder \"shared\" beside the project, nor where kvasir.shared says (" + property + ")");
    return found;
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
