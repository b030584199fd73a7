package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.NativeUnavailableException;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Loading happens once in a JVM, so each case has one of its own. */
class LoadingTest {

  /** What a program sees that uses the library twice. */
  public static final class Program {
    public static void main(String[] args) {
      for (int attempt = 0; attempt < 2; attempt++) {
        try {
          Kvasir.LoadReport report = Kvasir.load();
          try (KvCache cache = KvCache.builder(Testing.small()).build()) {
            System.out.println("runs " + report.classifier() + " " + cache.stats().backend());
          }
        } catch (NativeUnavailableException e) {
          System.out.println("fails " + e.code() + " " + e.getMessage());
          System.out.println("cause " + e.getCause());
        }
      }
    }
  }

  private static String run(String... properties) throws IOException, InterruptedException {
    return run(Map.of(), properties);
  }

  private static String run(Map<String, String> environment, String... properties)
      throws IOException, InterruptedException {
    return runWith("", environment, properties);
  }

  private static String runWith(String firstOnClassPath, Map<String, String> environment, String... properties)
      throws IOException, InterruptedException {
    List<String> command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java"));
    command.addAll(List.of(properties));
    String classPath = System.getProperty("java.class.path");
    command.add("-cp");
    command.add(firstOnClassPath.isEmpty() ? classPath : firstOnClassPath + File.pathSeparator + classPath);
    command.add(Program.class.getName());
    Path log = Files.createTempFile("kvasir-loading", ".log");
    ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log.toFile());
    builder.environment().putAll(environment);
    Process process = builder.start();
    try {
      assertTrue(process.waitFor(60, TimeUnit.SECONDS), "the program hangs");
      return Files.readString(log, StandardCharsets.UTF_8);
    } finally {
      process.destroyForcibly();
      Files.delete(log);
    }
  }

  private static void assertSays(String output, Object... parts) {
    for (Object part : parts) {
      assertTrue(output.contains(part.toString()), () -> "no '" + part + "' in:\n" + output);
    }
  }

  /** The library that the tests run on, wherever it comes from. */
  private static String library() {
    return "-Dkvasir.native.path=" + Kvasir.load().library();
  }

  private static boolean hasCuda() {
    return Kvasir.backends().stream().anyMatch(backend -> backend.name().equals("cuda") && backend.available());
  }

  @Test
  void theCpuCanBeForced() throws Exception {
    String output = run("-Dkvasir.backend=cpu", library());
    assertSays(output, "runs ");
    assertFalse(output.contains("cuda"), output);
  }

  @Test
  void aFileOrItsFolderCanBeNamed() throws Exception {
    Path library = Kvasir.load().library();
    assertSays(run("-Dkvasir.native.path=" + library), "runs path");
    assertSays(run("-Dkvasir.native.path=" + library.getParent()), "runs path");
  }

  /** A jar for the GPU whose library does not load, as on a machine without a driver. */
  private static String brokenGpuJar(Path folder, String platform) throws IOException {
    Path library =
        folder.resolve("dev/kvasir/internal/jni/" + platform + "-gpu").resolve(System.mapLibraryName("jnikvasir"));
    Files.createDirectories(library.getParent());
    Files.writeString(library, "not a library");
    return folder.toString();
  }

  @Test
  void anUnusableGpuIsOneWarningOrAnError(@TempDir Path folder) throws Exception {
    String platform = Kvasir.load().classifier().replace("-gpu", "");
    Assumptions.assumeFalse(platform.equals("path"), "the tests run on a library that was named");
    String jar = brokenGpuJar(folder, platform);
    String output = runWith(jar, Map.of());
    assertSays(output, "runs " + platform, platform + "-gpu", folder);
    assertEquals(1, output.split("WARNING: Kvasir runs on the CPU", -1).length - 1, output);
    assertFalse(runWith(jar, Map.of(), "-Dkvasir.backend=cpu").contains("WARNING: Kvasir"));
    assertSays(runWith(jar, Map.of(), "-Dkvasir.backend=cuda"), "fails UNAVAILABLE", folder, platform + "-gpu");
  }

  @Test
  void aForcedGpuThatIsNotThereFailsLoudly() throws Exception {
    Assumptions.assumeFalse(hasCuda(), "this machine has a GPU");
    String output = run("-Dkvasir.backend=cuda");
    assertSays(
        output,
        "fails UNAVAILABLE",
        "os=" + System.getProperty("os.name"),
        "arch=" + System.getProperty("os.arch"),
        "-gpu",
        "kvasir.backend=cuda",
        "tried=[");
    assertFalse(output.contains("runs"), output);
    assertEquals(2, output.split("fails UNAVAILABLE", -1).length - 1, "the second attempt fails like the first");
    assertSays(output, "cause dev.kvasir.error.NativeUnavailableException");
  }

  @Test
  void aNamedLibraryWithoutTheForcedBackendFailsLoudly() throws Exception {
    Assumptions.assumeFalse(hasCuda(), "this machine has a GPU");
    String output = run("-Dkvasir.backend=cuda", "-Dkvasir.native.path=" + Kvasir.load().library());
    assertSays(output, "fails UNAVAILABLE", "cuda", Kvasir.load().library());
  }

  @Test
  void aPathThatLeadsNowhereFailsLoudly(@TempDir Path folder) throws Exception {
    Path missing = folder.resolve("missing");
    assertSays(run("-Dkvasir.native.path=" + missing), "fails UNAVAILABLE", missing, "no such file");
    assertSays(run("-Dkvasir.native.path=" + folder), "fails UNAVAILABLE", folder, System.mapLibraryName("jnikvasir"));
  }

  @Test
  void aFileThatIsNoLibraryFailsWithTheLinkersWords(@TempDir Path folder) throws Exception {
    Path file = Files.writeString(folder.resolve("fake.so"), "not a library");
    assertSays(
        run("-Dkvasir.native.path=" + file), "fails UNAVAILABLE", file, "cause java.lang.UnsatisfiedLinkError");
  }

  @Test
  void theEnvironmentChoosesAmongBackends() throws Exception {
    assertSays(run(Map.of("KVASIR_BACKEND", "scalar"), library()), "runs", "scalar");
    assertSays(
        run(Map.of("KVASIR_BACKEND", "abacus"), library()), "fails UNAVAILABLE", "KVASIR_BACKEND=abacus", "scalar");
  }

  @Test
  void anotherBackendWordIsRefused() throws Exception {
    assertSays(run("-Dkvasir.backend=gpu"), "fails UNAVAILABLE", "kvasir.backend=gpu", "auto, cpu or cuda");
  }
}
