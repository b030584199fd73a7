package dev.kvasir;

import java.io.File;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Assumptions;

/** A JVM of its own for what may kill one, or what happens once in one. */
public final class ChildJvm {

  private final List<String> command = new ArrayList<>();
  private String java = System.getProperty("java.home") + "/bin/java";
  private String classPath = System.getProperty("java.class.path");
  private String limits = "";

  /** Its exit status, and all that it printed. */
  public record Outcome(int status, String output) {}

  /** Arguments for the JVM. */
  public ChildJvm with(String... arguments) {
    command.addAll(List.of(arguments));
    return this;
  }

  /** It finds the library where this JVM was told to: by {@code kvasir.native.path}, or else on the class path. */
  public ChildJvm withLibrary() {
    String path = System.getProperty("kvasir.native.path");
    return path == null ? this : with("-Dkvasir.native.path=" + path);
  }

  /** Another JDK than this one. */
  public ChildJvm on(Path home) {
    java = home.resolve("bin/java").toString();
    return this;
  }

  /** JavaCPP's own natives are there, too, as where an application uses other libraries over JavaCPP. */
  public ChildJvm besideJavaCpp() {
    String natives = System.getProperty("kvasir.test.javacpp");
    Assumptions.assumeTrue(natives != null, "no -Dkvasir.test.javacpp");
    return classPath(classPath + File.pathSeparator + natives);
  }

  public ChildJvm classPath(String path) {
    classPath = path;
    return this;
  }

  /** What the shell does before, e.g. {@code ulimit -v 4000000}. */
  public ChildJvm under(String shellCommand) {
    limits = shellCommand + " && ";
    return this;
  }

  public Outcome run(Class<?> program, String... arguments) throws IOException, InterruptedException {
    List<String> all = new ArrayList<>(List.of("bash", "-c", limits + "exec \"$@\"", "bash", java));
    // Whatever happens to it, a dead JVM leaves nothing behind.
    all.addAll(List.of("-XX:-CreateCoredumpOnCrash", "-XX:ErrorFile=/dev/null"));
    all.addAll(command);
    all.addAll(List.of("-cp", classPath, program.getName()));
    all.addAll(List.of(arguments));
    Path log = Files.createTempFile("kvasir-child", ".log");
    try {
      Process process = new ProcessBuilder(all).redirectErrorStream(true).redirectOutput(log.toFile()).start();
      if (!process.waitFor(5, TimeUnit.MINUTES)) {
        process.destroyForcibly().waitFor();
        throw new IOException("hangs after: " + Files.readString(log));
      }
      return new Outcome(process.exitValue(), Files.readString(log));
    } finally {
      Files.delete(log);
    }
  }

  /** The home of an installed JDK of at least this version: this one's, or one where Linux distributions put them. */
  public static Optional<Path> jdk(int feature) throws IOException {
    if (Runtime.version().feature() >= feature) {
      return Optional.of(Path.of(System.getProperty("java.home")));
    }
    Path homes = Path.of("/usr/lib/jvm");
    if (!Files.isDirectory(homes)) {
      return Optional.empty();
    }
    try (DirectoryStream<Path> found = Files.newDirectoryStream(homes)) {
      for (Path home : found) {
        Path release = home.resolve("release");
        if (!Files.isRegularFile(release) || !Files.isExecutable(home.resolve("bin/java"))) {
          continue;
        }
        for (String line : Files.readAllLines(release)) {
          if (line.startsWith("JAVA_VERSION=")
              && Runtime.Version.parse(line.replaceAll("^[^=]*=|\"", "")).feature() >= feature) {
            return Optional.of(home);
          }
        }
      }
    }
    return Optional.empty();
  }
}
