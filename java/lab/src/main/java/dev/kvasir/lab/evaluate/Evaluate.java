package dev.kvasir.lab.evaluate;

import dev.kvasir.lab.model.Model;
import dev.kvasir.lab.model.ModelException;
import dev.kvasir.lab.report.ResultFiles;
import dev.kvasir.lab.report.TextTable;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Measures what methods cost a model.
 *
 * <pre>Evaluate model=DIR [data=DIR] [out=DIR] [methods=LIST] [windows=N] [samples=N] [prompt=stream|exact]</pre>
 *
 * <p>Ctrl-C ends it early; what has been measured is written all the same.
 */
public final class Evaluate {

  /** Enough for a first look in some minutes on two cores. */
  private static final int DEFAULT_WINDOWS = 2;

  private static final int DEFAULT_SAMPLES = 10;

  /** How long the end of the program waits for the step under way and the files. */
  private static final int GRACE_SECONDS = 20;

  private Evaluate() {}

  /** Runs the program. Exit codes: 0 done, 1 failed, 2 asked wrongly, 130 stopped early. */
  public static void main(String[] args) {
    AtomicBoolean stop = new AtomicBoolean();
    CountDownLatch ended = new CountDownLatch(1);
    Thread hook =
        new Thread(
            () -> {
              stop.set(true);
              try {
                ended.await(GRACE_SECONDS, TimeUnit.SECONDS);
              } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
              }
            });
    Runtime.getRuntime().addShutdownHook(hook);
    int code = 1;
    try {
      code = run(args, System.out, stop);
    } finally {
      ended.countDown();
    }
    if (!stop.get()) {
      System.exit(code);
    }
  }

  /** Runs the program until it is done or told to stop. Returns its exit code. */
  static int run(String[] args, PrintStream out, AtomicBoolean stop) {
    Map<String, String> options;
    List<MethodEntry> methods;
    int windows;
    int samples;
    PromptMode prompt;
    try {
      options = options(args);
      methods = Methods.named(options.getOrDefault("methods", "*"));
      windows = count(options, "windows", DEFAULT_WINDOWS);
      samples = count(options, "samples", DEFAULT_SAMPLES);
      prompt = prompt(options.getOrDefault("prompt", "stream"));
    } catch (IllegalArgumentException e) {
      out.println("evaluate: " + e.getMessage());
      return 2;
    }
    Path folder = Path.of(options.get("model"));
    Path data = options.containsKey("data") ? Path.of(options.get("data")) : folder.resolve("tests");
    Path target = Path.of(options.getOrDefault("out", "build/reports/kvasir"));
    try {
      Model model = Model.load(folder);
      Map<String, List<Sample>> sets = SampleSets.read(data, model.tokenizer(), windows, samples);
      String name = folder.toAbsolutePath().normalize().getFileName().toString();
      ProgressBar bar = new ProgressBar(out, System.console() != null);
      Outcome outcome =
          new Evaluation(name, model, sets, methods, prompt, listener(bar, target)).run(stop::get);
      ResultFiles.write(outcome, target);
      bar.end();
      out.printf("%s: %s; %s on %d threads, %s%n%n", name, outcome.about(), outcome.backend(), outcome.threads(),
          ProgressBar.time(outcome.seconds()));
      out.println(TextTable.of(outcome));
      out.println((outcome.complete() ? "" : "Stopped early. ") + "Report: " + target.resolve("index.html"));
      out.flush();
      return outcome.complete() ? 0 : 130;
    } catch (ModelException e) {
      out.println("evaluate: " + e.getMessage());
    } catch (IOException e) {
      out.println("evaluate: " + e);
    }
    return 1;
  }

  private static Evaluation.Listener listener(ProgressBar bar, Path target) {
    return new Evaluation.Listener() {
      @Override
      public void progress(long done, long total, String doing) {
        bar.show(done, total, doing);
      }

      @Override
      public void advanced(Outcome soFar) {
        try {
          ResultFiles.write(soFar, target);
        } catch (IOException e) {
          throw new java.io.UncheckedIOException(e);
        }
      }
    };
  }

  private static Map<String, String> options(String[] args) {
    List<String> known = List.of("model", "data", "out", "methods", "windows", "samples", "prompt");
    Map<String, String> options = new LinkedHashMap<>();
    for (String arg : args) {
      String[] pair = arg.split("=", 2);
      if (pair.length != 2 || !known.contains(pair[0])) {
        throw new IllegalArgumentException("\"" + arg + "\" is none of " + String.join("=, ", known) + "=");
      }
      options.put(pair[0], pair[1]);
    }
    if (!options.containsKey("model")) {
      throw new IllegalArgumentException("model=DIR is missing: the folder of a model with config.json");
    }
    return options;
  }

  private static int count(Map<String, String> options, String name, int standard) {
    String text = options.getOrDefault(name, String.valueOf(standard));
    if (!text.matches("[1-9][0-9]{0,8}")) {
      throw new IllegalArgumentException(name + " is \"" + text + "\", not a number from 1 on");
    }
    return Integer.parseInt(text);
  }

  private static PromptMode prompt(String text) {
    for (PromptMode mode : PromptMode.values()) {
      if (mode.name().toLowerCase(Locale.ROOT).equals(text)) {
        return mode;
      }
    }
    throw new IllegalArgumentException("prompt is \"" + text + "\", not stream or exact");
  }
}
