package dev.kvasir.lab.demo;

import dev.kvasir.Kvasir;
import dev.kvasir.lab.Failures;
import dev.kvasir.lab.evaluate.Calibrations;
import dev.kvasir.lab.evaluate.Evaluation;
import dev.kvasir.lab.evaluate.MethodEntry;
import dev.kvasir.lab.evaluate.Methods;
import dev.kvasir.lab.evaluate.Outcome;
import dev.kvasir.lab.evaluate.ProgressBar;
import dev.kvasir.lab.evaluate.PromptMode;
import dev.kvasir.lab.sample.SampleSets;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import dev.kvasir.lab.report.Origin;
import dev.kvasir.lab.report.ResultFiles;
import dev.kvasir.lab.report.Transcript;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.function.Function;

/**
 * One model with the caches of all methods side by side: it reads a long text, answers questions about it and writes step by
 * step, while one sees what each cache takes and where its answers go wrong. Then a page with charts.
 *
 * <p>A model that brings tests has learned their tasks: its steps are those of a program that it runs. Of any other, pass keys are
 * asked that are hidden in a text, and it writes on in that.
 *
 * <pre>Demo MODEL TEXTS PROFILES REPORTS</pre>
 */
public final class Demo {

  private static final String PLAYERS =
      "uniform-4,uniform-2,pattern-2,pm-kvq-2,mix-kvq-2.7,comm-vq-2,balanced,smallest";
  private static final String MEASURED =
      PLAYERS + ",uniform-3,uniform-1,pattern-4,pattern-2-keys-only,pm-kvq-4,pm-kvq-2-immediate,mix-kvq-3.4";

  /** For models that bring no tests: what needs no training, or learns in a minute from a text. */
  private static final String UNTRAINED =
      "uniform-4,uniform-3,uniform-2,pattern-2,pm-kvq-2,mix-kvq-2.7,spectral-2,spectral-1.5";

  private static final int QUESTIONS = 6;
  private static final int STEPS = 30;
  private static final int WRITTEN = 24;

  /** Most tokens that come behind the text. */
  private static final int FORKED = 64;

  private static final int CHUNK = 256;
  private static final int COLUMN = 11;

  /** Samples of the charts: few, so that all is done within two minutes. */
  private static final int WINDOWS = 2;

  private static final int INSTANCES = 3;

  /** Tokens of the one window of a model that brings no tests. */
  private static final int WINDOW = 512;

  /** Marks what is wrong, on terminals without colours as well. */
  private static final String WRONG = "✗";

  private final PrintStream out;
  private final Path reports;
  private final boolean trained;
  private final Path tests;
  private final Model model;
  private final Decoder decoder;
  private final Calibrations calibrations;

  private Demo(PrintStream out, Path path, Path texts, Path profiles, Path reports) throws IOException {
    Path own = path.resolve("tests");
    this.out = out;
    this.reports = reports;
    this.trained = Files.isDirectory(own);
    this.tests = trained ? own : texts;
    this.model = Model.load(path);
    this.decoder = new Decoder(model);
    this.calibrations = new Calibrations(model, Calibrations.files(tests)).quick(!trained).from(profiles);
  }

  /** Runs the demo. */
  public static void main(String[] args) throws Exception {
    if (args.length != 4) {
      System.err.println("Demo MODEL TEXTS PROFILES REPORTS");
      System.exit(2);
    }
    PrintStream out = new PrintStream(System.out, true, "UTF-8");
    try {
      run(out, Path.of(args[0]), Path.of(args[1]), Path.of(args[2]), Path.of(args[3]));
    } catch (IOException | RuntimeException e) {
      System.err.println("The demo ends: " + Failures.line(e).orElseThrow(() -> e));
      System.exit(1);
    }
  }

  /**
   * Runs the demo.
   *
   * @param path of the model, a file or a folder
   * @param texts for models that bring no tests: a folder with a text to read, and one to learn from
   * @param profiles with what methods learn; what is not there is learned
   * @param reports where the page goes
   */
  public static void run(PrintStream out, Path path, Path texts, Path profiles, Path reports) throws IOException {
    Demo demo = new Demo(out, path, texts, profiles, reports);
    demo.measure(demo.play(demo.script()));
  }

  private Script script() throws IOException {
    return trained
        ? Script.read(tests, QUESTIONS, STEPS)
        : Script.of(SampleSets.hiddenKeys(tests, model.tokenizer(), model.config().maxPositions()));
  }

  private Transcript play(Script script) {
    int[] text = model.tokenizer().encode(script.text());
    print("Kvasir %s, %s on %d threads. A model of %.1f million parameters, one cache for each method.",
        Kvasir.version(), Kvasir.defaultBackend(), Kvasir.threads(), model.parameters() / 1e6);
    print("");
    // Forks that answer questions and the run of the program have windows of their own.
    MethodEntry.Request request =
        new MethodEntry.Request(
            model.geometry(),
            trained ? 2 : 1,
            2,
            trained ? model.config().maxPositions() : text.length + FORKED,
            calibrations);
    List<Player> players = new ArrayList<>();
    try {
      Methods.named(trained ? PLAYERS : UNTRAINED).forEach(method -> players.add(new Player(method, decoder, request)));
      read(script, text, players);
      ask(script, players);
      run(script, players);
      Transcript transcript = transcript(script, text.length, players);
      summarise(transcript);
      return transcript;
    } finally {
      players.forEach(Player::close);
    }
  }

  private void read(Script script, int[] text, List<Player> players) {
    print("1. It reads %d bytes: %s. KiB of the caches as they grow:", script.text().length(), script.about());
    print("");
    row("tokens", players, player -> player.method().name());
    for (int from = 0; from < text.length; from += CHUNK) {
      int[] chunk = Arrays.copyOfRange(text, from, Math.min(text.length, from + CHUNK));
      players.forEach(player -> player.read(chunk));
      row(String.valueOf(from + chunk.length), players, player -> format("%.0f", player.bytes() / 1024));
    }
    row("bits", players, player -> format("%.2f", player.bits()));
    row("bits/byte", players, player -> format("%.3f", player.bitsPerByte()));
    print("");
  }

  private void ask(Script script, List<Player> players) {
    print("2. It answers questions about the text. %s: wrong.", WRONG);
    print("");
    for (int i = 0; i < script.questions().size(); i++) {
      Script.Question question = script.questions().get(i);
      int asked = i;
      players.forEach(player -> player.answer(question));
      row(question.text().strip(), players, player -> marked(question.answer(), player.answers().get(asked)));
    }
    print("");
  }

  private void run(Script script, List<Player> players) {
    boolean program = script.program() != null;
    print(program
            ? "3. It runs a program of %d steps, each on the results of earlier ones. What each step gives:"
            : "3. It writes on, %d tokens, with the 16-bit cache. What others would have written in its place:",
        program ? script.steps().size() : WRITTEN);
    print("");
    players.forEach(player -> player.begin(script.program()));
    for (int i = 0; i < (program ? script.steps().size() : WRITTEN); i++) {
      int step = i;
      if (program) {
        players.forEach(player -> player.line(2 * script.steps().get(step).length()));
      } else {
        int token = players.get(0).next();
        players.forEach(player -> player.token(token));
      }
      String right = right(script, players).get(step);
      row(printable(result(right)), players, player -> marked(right, player.steps().get(step), result(player.steps().get(step))));
    }
    print("");
  }

  /** What steps should say: what the script has, or the first player, whose cache has 16 bits. */
  private static List<String> right(Script script, List<Player> players) {
    return script.steps().isEmpty() ? players.get(0).steps() : script.steps();
  }

  /** The end of a line: the register and its value. */
  private static String result(String line) {
    return line.substring(line.lastIndexOf(' ') + 1);
  }

  private static String marked(String right, String said) {
    return marked(right, said, said);
  }

  private static String marked(String right, String said, String shown) {
    String text = printable(shown);
    String brief = text.length() > COLUMN - 4 ? text.substring(0, COLUMN - 4) : text;
    return said.equals(right) ? brief : brief + WRONG;
  }

  private static String printable(String text) {
    return text.replace("\n", "\\n").replaceAll("[^\\x21-\\x7e]", "?");
  }

  private void summarise(Transcript transcript) {
    print("%-12s %6s %8s %10s %10s %10s", "", "bits", "KiB", "bits/byte", "answers", "steps");
    for (Transcript.Column column : transcript.columns()) {
      print("%-12s %6.2f %8.0f %10.3f %7d/%d %7d/%d", column.method(), column.bits(), column.bytes() / 1024,
          column.bitsPerByte(), transcript.right(column), transcript.answers().size(), transcript.rightSteps(column),
          transcript.steps().size());
    }
    print("Last: %s. Bits: all of them, per element, and the newest 128 tokens wait in", transcript.stepsRight());
    print("16 bits: %d tokens are few for that. Codebooks, which all sequences share, are not in them.",
        transcript.tokens());
    print("");
  }

  private static Transcript transcript(Script script, int tokens, List<Player> players) {
    List<Transcript.Column> columns = new ArrayList<>();
    for (Player player : players) {
      columns.add(
          new Transcript.Column(
              player.method().name(), player.bits(), player.bytes(), player.bitsPerByte(), player.answers(),
              player.steps()));
    }
    boolean program = script.program() != null;
    return new Transcript(
        format("The model read %d tokens, answered questions about them, and ", tokens)
            + (program ? "ran a program whose every step needs the results of earlier ones." : "wrote on with the 16-bit cache, while others said what they would have written."),
        tokens,
        script.questions().stream().map(Script.Question::text).toList(),
        script.questions().stream().map(Script.Question::answer).toList(),
        program ? "steps before an error" : "tokens as with 16 bits",
        program,
        right(script, players),
        columns);
  }

  /** More methods on more samples, for the charts. */
  private void measure(Transcript transcript) throws IOException {
    print("4. %s, for the charts.", trained ? "More methods on more texts and tasks" : "Another text");
    ProgressBar bar = new ProgressBar(out, ProgressBar.onTerminal());
    Outcome outcome =
        new Evaluation(
                trained ? "a small model" : model.name(),
                model,
                SampleSets.read(
                    tests,
                    model.tokenizer(),
                    trained ? WINDOWS : 1,
                    trained ? 0 : WINDOW,
                    trained ? INSTANCES : 0,
                    model.config().maxPositions()),
                Methods.named(trained ? MEASURED : UNTRAINED),
                PromptMode.STREAM,
                calibrations,
                new Evaluation.Listener() {
                  @Override
                  public void progress(long done, long total, String doing) {
                    bar.show(done, total, doing);
                  }
                })
            .run(() -> false);
    bar.end();
    ResultFiles.write(outcome, transcript, Origin.now("./gradlew demo" + (trained ? "" : " -Pmodel=FILE")), reports);
    print("");
    print("Page: %s", reports.resolve("index.html"));
  }

  private void row(String title, List<Player> players, Function<Player, String> cell) {
    StringBuilder line = new StringBuilder(format("%-" + (trained ? 12 : 24) + "s", title));
    players.forEach(player -> line.append(format("%" + (COLUMN + 2) + "s", cell.apply(player))));
    out.println(line);
  }

  private void print(String format, Object... arguments) {
    out.println(format(format, arguments));
  }

  private static String format(String format, Object... arguments) {
    return String.format(Locale.ROOT, format, arguments);
  }
}
