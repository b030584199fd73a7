package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.NativeUnavailableException;
import java.io.File;
import java.io.IOException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.stream.Collectors;
import java.util.stream.Stream;
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

  /** What a container of applications does: each has a class loader of its own, in one JVM. */
  public static final class TwoLoaders {
    public static void main(String[] args) throws Exception {
      List<URL> urls = new ArrayList<>();
      for (String entry : System.getProperty("java.class.path").split(File.pathSeparator)) {
        urls.add(Path.of(entry).toUri().toURL());
      }
      for (int i = 0; i < 3; i++) {
        ClassLoader loader = new URLClassLoader(urls.toArray(new URL[0]), ClassLoader.getPlatformClassLoader());
        Class.forName(Program.class.getName(), true, loader)
            .getMethod("main", String[].class)
            .invoke(null, (Object) new String[0]);
      }
    }
  }

  @Test
  void everyClassLoaderMayHaveItsOwn() throws Exception {
    ChildJvm.Outcome outcome = new ChildJvm().withLibrary().run(TwoLoaders.class);
    assertEquals(0, outcome.status(), outcome.output());
    assertEquals(6, outcome.output().split("runs ", -1).length - 1, outcome.output());
    assertEquals(0, new ChildJvm().with(library()).run(TwoLoaders.class).status());
  }

  /** The natives in a jar, as users have them. */
  private static Path jarOf(Path library, Path jar, String classifier) throws IOException {
    try (JarOutputStream out = new JarOutputStream(Files.newOutputStream(jar))) {
      out.putNextEntry(
          new JarEntry("dev/kvasir/internal/jni/" + classifier + "/" + System.mapLibraryName("jnikvasir")));
      Files.copy(library, out);
      out.closeEntry();
    }
    return jar;
  }

  /** The class path without natives. */
  private static String classesOnly() {
    return Stream.of(System.getProperty("java.class.path").split(File.pathSeparator))
        .filter(entry -> !Files.isDirectory(Path.of(entry, "dev/kvasir/internal/jni", platform())))
        .filter(entry -> !Files.isDirectory(Path.of(entry, "dev/kvasir/internal/jni", platform() + "-gpu")))
        .collect(Collectors.joining(File.pathSeparator));
  }

  private static String platform() {
    return org.bytedeco.javacpp.Loader.getPlatform();
  }

  @Test
  void theLibraryForGpusAloneServesACpu(@TempDir Path folder) throws Exception {
    Path jar = jarOf(Kvasir.load().library(), folder.resolve("gpu.jar"), platform() + "-gpu");
    ChildJvm.Outcome outcome =
        new ChildJvm()
            .with("-Dkvasir.backend=cpu", "-Dorg.bytedeco.javacpp.cachedir=" + folder.resolve("cache"))
            .classPath(classesOnly() + File.pathSeparator + jar)
            .run(Program.class);
    assertSays(outcome.output(), "runs " + platform() + "-gpu");
    assertFalse(outcome.output().contains("cuda\n"), outcome.output());
  }

  @Test
  void whereTheCacheFolderCannotBeWrittenTheLibraryIsUnpackedElsewhere(@TempDir Path folder) throws Exception {
    Path jar = jarOf(Kvasir.load().library(), folder.resolve("natives.jar"), platform());
    Path file = Files.createFile(folder.resolve("file"));
    String classPath = classesOnly() + File.pathSeparator + jar;
    // Folders below a file: not even root can make them.
    String cache = "-Dorg.bytedeco.javacpp.cachedir=" + file.resolve("cache");
    String home = "-Duser.home=" + file.resolve("home");
    Path temporary = Files.createDirectory(folder.resolve("temporary"));
    assertSays(
        new ChildJvm()
            .with(cache, home, "-Djava.io.tmpdir=" + temporary)
            .classPath(classPath)
            .run(Program.class)
            .output(),
        "runs " + platform());
    assertSays(
        new ChildJvm()
            .with(cache, home, "-Djava.io.tmpdir=" + file.resolve("temporary"))
            .classPath(classPath)
            .run(Program.class)
            .output(),
        "fails UNAVAILABLE",
        "org.bytedeco.javacpp.cachedir",
        "kvasir.native.path");
  }

  /** As in a container with a limit of processes: addresses for a few stacks more, and no thread beyond. */
  public static final class ManyThreads {
    public static void main(String[] args) {
      int before = Kvasir.threads();
      try {
        Kvasir.setThreads(1024);
        System.out.println("started all");
      } catch (NativeUnavailableException e) {
        System.out.println("refused " + e.getMessage());
      }
      System.out.println(before == Kvasir.threads() ? "as before" : "now " + Kvasir.threads());
      Program.main(args);
    }
  }

  @Test
  void threadsThatCannotBeStartedAreAnExceptionAndThePoolWorksOn() throws Exception {
    ChildJvm.Outcome outcome =
        new ChildJvm()
            .under("ulimit -v 4000000")
            .withLibrary()
            .with("-Dkvasir.backend=cpu", "-Xint", "-Xmx128m", "-XX:ReservedCodeCacheSize=16m", "-XX:CompressedClassSpaceSize=32m")
            .run(ManyThreads.class);
    assertEquals(0, outcome.status(), outcome.output());
    assertSays(outcome.output(), "refused ", "not 1024", "as before", "runs ");
  }
}
