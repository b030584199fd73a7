package dev.kvasir.lab.demo;

import dev.kvasir.Kvasir;
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
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.function.Function;

/**
 * One model with the caches of all methods side by side: it reads a long text, answers questions about it and runs a program
 * step by step, while one sees what each cache takes and where its answers go wrong. Then a page with charts.
 *
 * <pre>Demo MODEL PROFILES REPORTS</pre>
 */
public final class Demo {

  private static final String PLAYERS =
      "uniform-4,uniform-2,pattern-2,pm-kvq-2,mix-kvq-2.7,comm-vq-2,balanced,smallest";
  private static final String MEASURED =
      PLAYERS + ",uniform-3,uniform-1,pattern-4,pattern-2-keys-only,pm-kvq-4,pm-kvq-2-immediate,mix-kvq-3.4";
  private static final int QUESTIONS = 6;
  private static final int STEPS = 30;
  private static final int CHUNK = 256;
  private static final int COLUMN = 11;

  /** Samples of the charts: few, so that all is done within two minutes. */
  private static final int WINDOWS = 2;

  private static final int INSTANCES = 3;

  /** Marks what is wrong, on terminals without colours as well. */
  private static final String WRONG = "✗";

  private final PrintStream out;
  private final Path folder;
  private final Path reports;
  private final Model model;
  private final Decoder decoder;
  private final Calibrations calibrations;

  private Demo(PrintStream out, Path folder, Path profiles, Path reports) throws IOException {
    this.out = out;
    this.folder = folder;
    this.reports = reports;
    this.model = Model.load(folder);
    this.decoder = new Decoder(model);
    this.calibrations = new Calibrations(model, Calibrations.files(tests())).from(profiles);
  }

  /** Runs the demo. */
  public static void main(String[] args) throws IOException {
    if (args.length != 3) {
      System.err.println("Demo MODEL PROFILES REPORTS");
      System.exit(2);
    }
    run(new PrintStream(System.out, true, "UTF-8"), Path.of(args[0]), Path.of(args[1]), Path.of(args[2]));
  }

  /**
   * Runs the demo.
   *
   * @param folder of the model, with its tests
   * @param profiles with codebooks; those that are not there are trained
   * @param reports where the page goes
   */
  public static void run(PrintStream out, Path folder, Path profiles, Path reports) throws IOException {
    Demo demo = new Demo(out, folder, profiles, reports);
    Transcript transcript = demo.play(Script.read(demo.tests(), QUESTIONS, STEPS));
    demo.measure(transcript);
  }

  private Path tests() {
    return folder.resolve("tests");
  }

  private Transcript play(Script script) {
    int[] text = model.tokenizer().encode(script.text());
    print("Kvasir %s, %s on %d threads. A model of %.1f million parameters, one cache for each method.",
        Kvasir.version(), Kvasir.defaultBackend(), Kvasir.threads(), model.parameters() / 1e6);
    print("");
    // Forks that answer questions and the run of the program have windows of their own.
    MethodEntry.Request request =
        new MethodEntry.Request(model.geometry(), 2, 2, model.config().maxPositions(), calibrations);
    List<Player> players = new ArrayList<>();
    try {
      Methods.named(PLAYERS).forEach(method -> players.add(new Player(method, decoder, request)));
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
    print("1. It reads %d bytes: facts between lines of books. KiB of the caches as they grow:", script.text().length());
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
    print("3. It runs a program of %d steps, each on the results of earlier ones. What each step gives:",
        script.steps().size());
    print("");
    players.forEach(player -> player.begin(script.program()));
    for (int i = 0; i < script.steps().size(); i++) {
      String right = script.steps().get(i);
      int step = i;
      players.forEach(player -> player.step(2 * right.length()));
      row(result(right), players, player -> marked(right, player.steps().get(step), result(player.steps().get(step))));
    }
    print("");
  }

  /** The end of a line: the register and its value. */
  private static String result(String line) {
    return line.substring(line.lastIndexOf(' ') + 1);
  }

  private static String marked(String right, String said) {
    return marked(right, said, said);
  }

  private static String marked(String right, String said, String shown) {
    String text = shown.replaceAll("[^\\x21-\\x7e]", "?");
    String brief = text.length() > COLUMN - 4 ? text.substring(0, COLUMN - 4) : text;
    return said.equals(right) ? brief : brief + WRONG;
  }

  private void summarise(Transcript transcript) {
    print("%-12s %6s %8s %10s %10s %10s", "", "bits", "KiB", "bits/byte", "answers", "steps");
    for (Transcript.Column column : transcript.columns()) {
      print("%-12s %6.2f %8.0f %10.3f %7d/%d %7d/%d", column.method(), column.bits(), column.bytes() / 1024,
          column.bitsPerByte(), transcript.right(column), transcript.answers().size(), transcript.rightSteps(column),
          transcript.steps().size());
    }
    print("Steps: those before the first error. Bits: all of them, per element, and the newest 128 tokens wait in 16");
    print("bits: %d tokens are few for that. Codebooks, which all sequences share, are not in them.",
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
    return new Transcript(
        tokens,
        script.questions().stream().map(Script.Question::text).toList(),
        script.questions().stream().map(Script.Question::answer).toList(),
        script.steps(),
        columns);
  }

  /** More methods on more samples, for the charts. */
  private void measure(Transcript transcript) throws IOException {
    print("4. More methods on more texts and tasks, for the charts.");
    ProgressBar bar = new ProgressBar(out, ProgressBar.onTerminal());
    Outcome outcome =
        new Evaluation(
                "a small model",
                model,
                SampleSets.read(tests(), model.tokenizer(), WINDOWS, 0, INSTANCES, model.config().maxPositions()),
                Methods.named(MEASURED),
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
    ResultFiles.write(outcome, transcript, Origin.now("./gradlew demo"), reports);
    print("");
    print("Page: %s", reports.resolve("index.html"));
  }

  private void row(String title, List<Player> players, Function<Player, String> cell) {
    StringBuilder line = new StringBuilder(format("%-12s", title));
    players.forEach(player -> line.append(format("%" + (COLUMN + 1) + "s", cell.apply(player))));
    out.println(line);
  }

  private void print(String format, Object... arguments) {
    out.println(format(format, arguments));
  }

  private static String format(String format, Object... arguments) {
    return String.format(Locale.ROOT, format, arguments);
  }
}
