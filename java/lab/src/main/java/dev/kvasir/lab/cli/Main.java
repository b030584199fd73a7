package dev.kvasir.lab.cli;

import dev.kvasir.Kvasir;
import dev.kvasir.lab.Failures;
import dev.kvasir.lab.evaluate.ProgressBar;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicBoolean;
import picocli.CommandLine.Command;
import picocli.CommandLine;

/** The program {@code kvasir}. Exit codes: 0 done, 1 failed, 2 asked wrongly, 130 stopped by the user. */
@Command(
    name = "kvasir",
    description = "Compressed KV caches: run models, measure, calibrate, size, look inside.",
    mixinStandardHelpOptions = true,
    versionProvider = Main.Version.class,
    synopsisSubcommandLabel = "COMMAND",
    exitCodeListHeading = "%nExit codes:%n",
    exitCodeList = {"0:done", "1:failed", "2:asked wrongly", "130:stopped by the user; results are partial"},
    subcommands = {
      GenerateCommand.class,
      ChatCommand.class,
      PerplexityCommand.class,
      EvaluateCommand.class,
      CalibrateCommand.class,
      TrainCommand.class,
      AllocateCommand.class,
      SearchCommand.class,
      InspectCommand.class,
      FileCommand.class,
      SizeCommand.class,
      BenchCommand.class,
      CompletionCommand.class
    })
public final class Main implements Runnable {

  /** How long the end of the program waits for the step under way and the files. */
  private static final int GRACE_SECONDS = 20;

  static final int STOPPED = 130;

  /** What stands for characters that could not be read. */
  private static final char LOST = '\uFFFD';

  private final String command;
  private final PrintStream out;
  private final Stop stop;

  @CommandLine.Spec private CommandLine.Model.CommandSpec spec;

  private Main(String[] args, PrintStream out, Stop stop) {
    this.command = "kvasir " + String.join(" ", args);
    this.out = out;
    this.stop = stop;
  }

  /** What --version says: the library that was loaded. */
  static final class Version implements CommandLine.IVersionProvider {
    @Override
    public String[] getVersion() {
      return new String[] {"kvasir " + Kvasir.version() + ", " + Kvasir.defaultBackend()};
    }
  }

  /** Runs the program. */
  public static void main(String[] args) {
    Stop stop = new Stop(new AtomicBoolean());
    // Ctrl-C: commands that can leave partial results see the flag and do. The others are ended.
    Runtime.getRuntime().addShutdownHook(new Thread(() -> stop.ask(GRACE_SECONDS)));
    int code = 1;
    try {
      code = run(args, System.out, System.err, stop);
    } finally {
      stop.ended();
    }
    if (!stop.asked()) {
      System.exit(code);
    }
  }

  /** Runs the program until it is done or told to stop; all that it says goes to {@code out}. Returns its exit code. */
  public static int run(String[] args, PrintStream out, AtomicBoolean stop) {
    return run(args, out, out, new Stop(stop));
  }

  static int run(String[] args, PrintStream out, PrintStream err, Stop stop) {
    PrintWriter errors = new PrintWriter(err, true, StandardCharsets.UTF_8);
    if (String.join("", args).indexOf(LOST) >= 0 && !"UTF-8".equals(System.getProperty("sun.jnu.encoding"))) {
      errors.println("kvasir: an argument holds characters that this locale has not; LC_ALL=C.UTF-8 has all");
      return 2;
    }
    return new CommandLine(new Main(args, out, stop))
        .setOut(new PrintWriter(out, true, StandardCharsets.UTF_8))
        .setErr(errors)
        .setCaseInsensitiveEnumValuesAllowed(true)
        .setUsageHelpWidth(110)
        .setExecutionExceptionHandler((failure, line, parsed) -> explain(failure, errors))
        .execute(args);
  }

  /** What users can mend is said in a line; anything else is a bug, and keeps its stack trace. */
  private static int explain(Exception failure, PrintWriter writer) throws Exception {
    writer.println("kvasir: " + Failures.line(failure).orElseThrow(() -> failure));
    return 1;
  }

  @Override
  public void run() {
    spec.commandLine().usage(spec.commandLine().getOut());
  }

  /** What the user asked for. */
  String command() {
    return command;
  }

  PrintStream out() {
    return out;
  }

  /** Says how far a command is: on a terminal in one line, else a line now and then. */
  ProgressBar progress() {
    return new ProgressBar(out, ProgressBar.onTerminal());
  }

  /** Whether the user wants no more: of the command, or of what it says, as {@code head} does that has seen enough. */
  boolean stopped() {
    return stop.asked() || out.checkError();
  }

  /** Says that the command looks at {@link #stopped}; {@code rest} saves what it has if it does not get to its end. */
  void endsWhenStopped(Runnable rest) {
    stop.endsWhenAsked(rest);
  }
}
