package dev.kvasir.lab.cli;

import dev.kvasir.Precision;
import dev.kvasir.lab.evaluate.Calibrations;
import dev.kvasir.lab.evaluate.Evaluation;
import dev.kvasir.lab.evaluate.MethodEntry;
import dev.kvasir.lab.evaluate.Methods;
import dev.kvasir.lab.evaluate.Outcome;
import dev.kvasir.lab.evaluate.ProgressBar;
import dev.kvasir.lab.evaluate.PromptMode;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.lab.sample.SampleSets;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import dev.kvasir.lab.report.Origin;
import dev.kvasir.lab.report.ResultFiles;
import dev.kvasir.lab.report.TextTable;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.ParentCommand;
import picocli.CommandLine.Spec;
import picocli.CommandLine;

@Command(
    name = "evaluate",
    description = {
      "Measures what each method costs a model: text, tasks, memory and time.",
      "Ctrl-C ends it early; what has been measured is written all the same."
    },
    mixinStandardHelpOptions = true)
final class EvaluateCommand implements Callable<Integer> {

  /** Files are not rewritten more often. */
  private static final long BETWEEN_FILES = 5_000_000_000L;

  @ParentCommand private Main main;
  @Spec private CommandLine.Model.CommandSpec spec;

  @Parameters(
      paramLabel = "MODEL",
      description = "A GGUF file, or a model's folder: config.json, safetensors, tokenizer.json.")
  private Path path;

  @Option(
      names = "--data",
      paramLabel = "DIR",
      description = "Texts (*_test.bin) and tasks (*.jsonl). Default: tests beside the model's files.")
  private @Nullable Path data;

  @Option(
      names = "--tuning",
      paramLabel = "DIR",
      description = "What methods may learn from: texts (*_val.bin) and tasks (*_val.jsonl). Default: as --data.")
  private @Nullable Path tuning;

  @Option(
      names = "--profiles",
      paramLabel = "DIR",
      description = {
        "What methods learned before (spectral.profile, which presets go by, comm-vq-1.profile, ...) and recorded",
        "gradients (calib.safetensors). Default: MODEL."
      })
  private @Nullable Path profiles;

  @Option(names = "--out", paramLabel = "DIR", description = "Where reports go. Default: ${DEFAULT-VALUE}.")
  private Path target = Path.of("build/reports/kvasir");

  @Option(
      names = "--methods",
      paramLabel = "LIST",
      description = {
        "Names with commas between; a star stands for anything, @NAME for the rows of a paper's table, such as",
        "@patternkv-table4, @* for all of those. Default: all, without those rows."
      })
  private String methods = "*";

  @Option(
      names = "--sample",
      description = {
        "Minutes instead of hours: --prompt exact --scored 64 --windows 2, where nothing else is said. Every window is",
        "read once, in 16 bits; each cache gets it in one piece, and predicts its last tokens."
      })
  private boolean sample;

  @Option(
      names = "--scored",
      paramLabel = "N",
      description = "Of each text only the last N tokens are predicted; 0 for all. Default: 0.")
  private @Nullable Integer scored;

  @Option(
      names = "--passkeys",
      paramLabel = "N",
      description = "Pass keys to hide in texts of 512 tokens and ask for. Default: 10 for a GGUF file, else none.")
  private @Nullable Integer passkeys;

  @Option(names = "--windows", paramLabel = "N", description = "Windows of each text. Default: 3, of a sample 2.")
  private @Nullable Integer windows;

  @Option(
      names = "--window",
      paramLabel = "N",
      description = {
        "Tokens of a window. Default: as many as the model was made for if it is a GGUF file, else windows of 4096",
        "bytes, or of fewer where the model was made for fewer tokens."
      })
  private @Nullable Integer window;

  @Option(names = "--samples", paramLabel = "N", description = "Instances of each task. Default: ${DEFAULT-VALUE}.")
  private int samples = 10;

  @Option(
      names = "--prompt",
      paramLabel = "MODE",
      description = "How prompts of tasks get into a cache: ${COMPLETION-CANDIDATES}. Default: stream.")
  private @Nullable PromptMode prompt;

  @Option(
      names = "--backend",
      paramLabel = "NAME",
      description = {
        "cuda runs the model on a GPU, where the caches are then, too. Times are those of handing work over.",
        "Default: the CPU, with caches where they are fastest."
      })
  private Device device = Device.CPU;

  @Override
  public Integer call() throws IOException {
    List<MethodEntry> entries;
    try {
      entries = Methods.named(methods);
    } catch (IllegalArgumentException e) {
      throw new CommandLine.ParameterException(spec.commandLine(), e.getMessage());
    }
    check();
    Target.checkFolder(target);
    Model model = Model.load(path);
    boolean file = !Files.isDirectory(path);
    Path folder = file ? path.toAbsolutePath().getParent() : path;
    Path tests = data == null ? folder.resolve("tests") : data;
    Map<String, List<Sample>> sets = samples(model, file, tests);
    PromptMode mode = prompt != null ? prompt : sample ? PromptMode.EXACT : PromptMode.STREAM;
    String name = model.name();
    ProgressBar bar = main.progress();
    Calibrations calibrations =
        new Calibrations(model, Calibrations.files(TextOptions.folder("--tuning", tuning, tests)))
            .from(TextOptions.folder("--profiles", profiles, folder))
            .on(device.backend())
            .quick(sample);
    for (MethodEntry entry : entries) {
      if (!entry.applies().test(calibrations)) {
        main.out().println(entry.name() + " is left out: there is nothing that it could learn from" + (sample ? ", or no time for it" : ""));
      }
    }
    entries = entries.stream().filter(entry -> entry.applies().test(calibrations)).toList();
    Listener listener = new Listener(bar);
    main.endsWhenStopped(listener::writeRest);
    Outcome outcome;
    try (Decoder decoder = new Decoder(model, device.backend(), Precision.EXACT)) {
      outcome = new Evaluation(name, decoder, sets, entries, mode, calibrations, listener).run(main::stopped);
    }
    ResultFiles.write(outcome, Origin.now(main.command()), target);
    bar.end();
    main.out().printf(Locale.ROOT, "%s: %s; %s on %d threads, %s%n%n", name, outcome.about(), outcome.backend(), outcome.threads(),
        ProgressBar.time(outcome.seconds()));
    main.out().println(TextTable.of(outcome));
    if (!calibrations.seconds().isEmpty()) {
      main.out().println("Learned on the way: " + learned(calibrations) + ".\n");
    }
    main.out().println((outcome.complete() ? "" : "Stopped early. ") + "Report: " + target.resolve("index.html"));
    main.out().flush();
    return outcome.complete() ? 0 : Main.STOPPED;
  }

  private static String learned(Calibrations calibrations) {
    List<String> parts = new ArrayList<>();
    calibrations.seconds().forEach((what, seconds) -> parts.add(String.format(Locale.ROOT, "%s %.1f s", what, seconds)));
    return String.join(", ", parts);
  }

  private void check() {
    Map<String, Integer> counts =
        Map.of("--windows", or(windows, 0), "--samples", samples, "--scored", or(scored, 0), "--passkeys", or(passkeys, 0));
    counts.forEach((option, count) -> Range.require(spec, count >= 0, option, count, "0 or more"));
    Range.requirePositive(spec, "--window", or(window, 1));
  }

  private static int or(@Nullable Integer given, int otherwise) {
    return given == null ? otherwise : given;
  }

  private Map<String, List<Sample>> samples(Model model, boolean file, Path tests) throws IOException {
    int context = model.config().maxPositions();
    Map<String, List<Sample>> sets =
        SampleSets.read(
            tests, model.tokenizer(), or(windows, sample ? 2 : 3), or(window, file ? context : 0), samples, context);
    int last = or(scored, sample ? 64 : 0);
    Map<String, List<Sample>> cut = last == 0 ? sets : SampleSets.lastTokens(sets, last);
    int keys = or(passkeys, file ? 10 : 0);
    if (keys > 0) {
      if (cut.put("passkey", SampleSets.passkeys(tests, model.tokenizer(), keys, context)) != null) {
        throw new IllegalArgumentException(tests + " has a text or a task passkey: --passkeys=0 leaves ours out");
      }
    }
    if (cut.isEmpty()) {
      throw new CommandLine.ParameterException(
          spec.commandLine(), "there is nothing to measure: --windows, --samples and --passkeys are 0");
    }
    return cut;
  }

  /** Writes what has been found so far, now and then. */
  private final class Listener implements Evaluation.Listener {
    private final ProgressBar bar;
    private long written = System.nanoTime() - BETWEEN_FILES;
    private @Nullable Outcome unwritten;

    Listener(ProgressBar bar) {
      this.bar = bar;
    }

    @Override
    public void progress(long done, long total, String doing) {
      bar.show(done, total, doing);
    }

    @Override
    public synchronized void advanced(Outcome soFar) {
      unwritten = soFar;
      if (System.nanoTime() - written >= BETWEEN_FILES) {
        writeRest();
      }
    }

    synchronized void writeRest() {
      if (unwritten == null) {
        return;
      }
      try {
        ResultFiles.write(unwritten, Origin.now(main.command()), target);
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
      written = System.nanoTime();
      unwritten = null;
    }
  }
}
