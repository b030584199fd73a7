import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.tools.ToolProvider;

/**
 * Holds the pages of the documentation to what they print. Run by ci/check-docs.
 *
 * <p>Blocks of Java compile against the library: a block with a class of its own is a program, and is run; any other is the
 * body of a method whose parameters an invisible line before the block names: {@code <!-- given: int layer, ... -->}.
 *
 * <p>Commands stand in ci/docs/commands, each with how it is tried: see there.
 *
 * <p>A table of measurements stands in a section that names the command that printed it.
 */
public final class CheckDocs {

  private static final Pattern GIVEN = Pattern.compile("<!-- given: (.*) -->");
  private static final Pattern COMMAND = Pattern.compile("(\\./gradlew|ci/[a-z]|\\.ci/run|kvasir [a-z]).*");
  private static final Pattern INLINE = Pattern.compile("`((?:\\./gradlew |ci/[a-z]|\\.ci/run|kvasir [a-z])[^`]*)`");
  private static final Pattern NEEDS_GRADLE = Pattern.compile("\\./gradlew|ci/");
  /** What prints figures: our commands, and the benchmarks that they run. */
  private static final Pattern SOURCE = Pattern.compile("\\./gradlew \\w+|ci/[a-z]+|kvasir_[a-z_]*bench");

  private static int passed;
  private static int failed;

  /** A line of ci/docs/commands. */
  private record Trial(String printed, String how) {}

  private record Block(String where, String language, String given, String text) {}

  private CheckDocs() {}

  /** Arguments: a folder to work in, the class path of the library, the version, then the pages. */
  public static void main(String[] args) throws Exception {
    Path work = Files.createDirectories(Path.of(args[0]));
    String version = args[2];
    Set<String> printed = new LinkedHashSet<>();
    for (String page : List.of(args).subList(3, args.length)) {
      List<String> lines = Files.readAllLines(Path.of(page));
      for (Block block : blocks(page, lines)) {
        if (block.language().equals("java")) {
          check(block.where() + ": Java compiles" + (isProgram(block) ? " and runs" : ""), java(block, work, args[1]));
        } else if (block.language().equals("groovy") || block.language().equals("xml")) {
          check(block.where() + ": names this version", block.text().contains(version) ? "" : "not " + version);
        } else {
          block.text().lines().map(CheckDocs::command).filter(CheckDocs::isCommand).forEach(printed::add);
        }
      }
      for (String line : lines) {
        Matcher matcher = INLINE.matcher(line);
        while (matcher.find()) {
          printed.add(matcher.group(1));
        }
      }
      check(page + ": tables of figures name their commands", orphanedTables(page, lines));
    }
    commands(printed);
    System.out.println(passed + " passed, " + failed + " failed");
    System.exit(failed == 0 ? 0 : 1);
  }

  private static synchronized void check(String what, String findings) {
    if (findings.isEmpty()) {
      passed++;
      System.out.println("ok      " + what);
    } else {
      failed++;
      System.out.println("FAILED  " + what + "\n" + findings);
    }
  }

  // Pages ------------------------------------------------------------------------------------------------------------

  /** Fenced blocks with their language, and indented ones as language "". */
  private static List<Block> blocks(String page, List<String> lines) {
    List<Block> blocks = new ArrayList<>();
    String given = "";
    for (int i = 0; i < lines.size(); i++) {
      String line = lines.get(i);
      int first = i + 1;
      StringBuilder text = new StringBuilder();
      if (line.startsWith("```")) {
        while (!lines.get(++i).startsWith("```")) {
          text.append(lines.get(i)).append('\n');
        }
        blocks.add(new Block(page + ":" + first, line.substring(3).strip(), given, text.toString()));
      } else if (line.startsWith("    ") && (i == 0 || lines.get(i - 1).isBlank())) {
        for (; i < lines.size() && lines.get(i).startsWith("    "); i++) {
          text.append(lines.get(i).substring(4)).append('\n');
        }
        blocks.add(new Block(page + ":" + first, "", given, text.toString()));
      }
      Matcher matcher = GIVEN.matcher(line);
      given = matcher.matches() ? matcher.group(1) : "";
    }
    return blocks;
  }

  /** The command of a line, without what explains it: "# ..." or what stands two spaces further on. */
  private static String command(String line) {
    return line.replaceFirst("\\s+#.*", "").replaceFirst("\\s{2,}.*", "").strip();
  }

  private static boolean isCommand(String text) {
    return COMMAND.matcher(text).matches();
  }

  private static String orphanedTables(String page, List<String> lines) {
    List<String> findings = new ArrayList<>();
    boolean sourced = false;
    for (int i = 0; i < lines.size(); i++) {
      String line = lines.get(i);
      if (line.startsWith("## ")) {
        sourced = false;
        for (int j = i; j < lines.size() && (j == i || !lines.get(j).startsWith("## ")); j++) {
          sourced |= SOURCE.matcher(lines.get(j)).find();
        }
      }
      boolean begins = line.startsWith("|") && (i == 0 || !lines.get(i - 1).startsWith("|"));
      if (begins && !sourced && hasFigures(lines, i)) {
        findings.add(page + ":" + (i + 1));
      }
    }
    return String.join("\n", findings);
  }

  /** Whether a table has rows of decimal figures: layouts and lists of options have whole numbers. */
  private static boolean hasFigures(List<String> lines, int first) {
    int rows = 0;
    for (int i = first; i < lines.size() && lines.get(i).startsWith("|"); i++) {
      rows += lines.get(i).matches(".*\\|[^|]*\\b\\d+\\.\\d+\\b[^|]*\\|.*") ? 1 : 0;
    }
    return rows >= 2;
  }

  // Java -------------------------------------------------------------------------------------------------------------

  private static boolean isProgram(Block block) {
    return block.text().contains("static void main(");
  }

  private static String java(Block block, Path work, String classPath) throws IOException, InterruptedException {
    String name = "Block" + block.where().replaceAll("\\W", "_");
    String source = block.text();
    if (isProgram(block)) {
      Matcher matcher = Pattern.compile("class (\\w+)").matcher(source);
      if (!matcher.find()) {
        return "a program without a class";
      }
      name = matcher.group(1);
    } else {
      source = imports(classPath) + "class " + name + " {\n  void run(" + block.given() + ") throws Exception {\n"
          + source + "  }\n}\n";
    }
    Path folder = Files.createDirectories(work.resolve("block-" + block.where().replaceAll("\\W", "-")));
    Path file = Files.writeString(folder.resolve(name + ".java"), source);
    var errors = new java.io.ByteArrayOutputStream();
    int status =
        ToolProvider.getSystemJavaCompiler()
            .run(null, errors, errors, "-cp", classPath, "-d", folder.toString(), file.toString());
    if (status != 0 || !isProgram(block)) {
      return status == 0 ? "" : errors.toString();
    }
    String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
    return run(List.of(java, "-Xmx1g", "-cp", folder + File.pathSeparator + classPath, name));
  }

  /** Every public package of the library and of what runs on it. */
  private static String imports(String classPath) throws IOException {
    Set<String> packages = new LinkedHashSet<>(List.of("java.util", "java.nio", "java.nio.file"));
    for (String entry : classPath.split(File.pathSeparator)) {
      if (Files.isDirectory(Path.of(entry))) {
        try (Stream<Path> files = Files.walk(Path.of(entry))) {
          files.filter(path -> path.toString().endsWith(".class"))
              .map(path -> Path.of(entry).relativize(path).getParent())
              .filter(path -> path != null && !path.toString().contains("internal"))
              .map(path -> path.toString().replace('/', '.'))
              .filter(name -> name.startsWith("dev.kvasir") && !name.contains("presets"))
              .sorted()
              .forEach(packages::add);
        }
      }
    }
    return packages.stream().map(name -> "import " + name + ".*;\n").collect(Collectors.joining());
  }

  // Commands ---------------------------------------------------------------------------------------------------------

  private static void commands(Set<String> printed) throws IOException {
    Map<String, String> known = new LinkedHashMap<>();
    for (Trial trial : trials()) {
      known.put(trial.printed(), trial.how());
    }
    Set<String> unknown = new LinkedHashSet<>(printed);
    unknown.removeAll(known.keySet());
    check("every command that is printed stands in ci/docs/commands", String.join("\n", unknown));
    Set<String> unprinted = new LinkedHashSet<>(known.keySet());
    unprinted.removeAll(printed);
    check("every command of ci/docs/commands is printed", String.join("\n", unprinted));
    Map<String, String> commands = new LinkedHashMap<>(); // and what each is called
    known.forEach(
        (name, how) -> {
          if (how.equals("run")) {
            commands.putIfAbsent(name, name);
          } else if (!how.startsWith("elsewhere")) {
            commands.putIfAbsent(how, name + "  as  " + how);
          }
        });
    // Gradle does one thing at a time: what needs none of it is tried beside it.
    CompletableFuture<Void> beside =
        CompletableFuture.runAsync(() -> tryAll(commands, command -> !NEEDS_GRADLE.matcher(command).find()));
    tryAll(commands, command -> NEEDS_GRADLE.matcher(command).find());
    beside.join();
  }

  private static void tryAll(Map<String, String> commands, Predicate<String> wanted) {
    commands.forEach(
        (command, name) -> {
          if (wanted.test(command)) {
            check(name, run(List.of("bash", "-c", command)));
          }
        });
  }

  private static List<Trial> trials() throws IOException {
    List<Trial> trials = new ArrayList<>();
    for (String line : Files.readAllLines(Path.of("ci/docs/commands"))) {
      if (!line.isBlank() && !line.startsWith("#")) {
        int at = line.indexOf(" => ");
        trials.add(new Trial(line.substring(0, at).strip(), line.substring(at + 4).strip()));
      }
    }
    return trials;
  }

  /** What a command printed last, where it failed; nothing where it did not. */
  private static String run(List<String> command) {
    try {
      Path output = Files.createTempFile("kvasir-docs-", ".log");
      Process process =
          new ProcessBuilder(command)
              .redirectErrorStream(true)
              .redirectOutput(output.toFile())
              .redirectInput(new File("/dev/null"))
              .start();
      int status = process.waitFor();
      List<String> lines = Files.readAllLines(output);
      Files.delete(output);
      if (status == 0) {
        return "";
      }
      return "exit " + status + "\n" + String.join("\n", lines.subList(Math.max(0, lines.size() - 40), lines.size()));
    } catch (IOException | InterruptedException e) {
      return e.toString();
    }
  }
}
