package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Kvasir;
import dev.kvasir.error.KvException;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.ModelConfig;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.BooleanSupplier;
import org.jspecify.annotations.Nullable;

/**
 * Runs samples through the caches of several methods. Batches of samples are the outer loop and methods the inner one,
 * so that whatever has been done when it is stopped compares methods on the same samples.
 */
public final class Evaluation {

  /** Samples that are run side by side. */
  private static final int BATCH = 10;

  /** Decoding steps that are timed, and before them one that is not. */
  private static final int TIMED_STEPS = 8;

  /** Hears how things go. */
  public interface Listener {
    /** Does not listen. */
    Listener NONE = new Listener() {};

    /** So many tokens of all have been run; {@code doing} says what is being run. */
    default void progress(long done, long total, String doing) {}

    /** A batch of samples has been run for all methods. */
    default void advanced(Outcome soFar) {}
  }

  private final String name;
  private final Model model;
  private final Decoder decoder;
  private final Map<String, List<Sample>> sets;
  private final PromptMode prompt;
  private final Calibrations calibrations;
  private final Listener listener;
  private final List<MethodResult> results = new ArrayList<>();
  private final long start = System.nanoTime();
  private BooleanSupplier stopped = () -> false;
  private long done;
  private long total;

  /**
   * An evaluation that has not begun.
   *
   * @param name what to call the model
   * @param model the model
   * @param sets samples by the name of their set
   * @param methods the methods, {@link Methods#REFERENCE} first
   * @param prompt how prompts get into caches
   * @param calibrations for methods that learn of the model first
   * @param listener hears how things go
   */
  public Evaluation(
      String name,
      Model model,
      Map<String, List<Sample>> sets,
      List<MethodEntry> methods,
      PromptMode prompt,
      Calibrations calibrations,
      Listener listener) {
    this(name, new Decoder(model), sets, methods, prompt, calibrations, listener);
  }

  /** The same on a decoder of the model, which stays the caller's; caches are where {@code auto} puts them. */
  public Evaluation(
      String name,
      Decoder decoder,
      Map<String, List<Sample>> sets,
      List<MethodEntry> methods,
      PromptMode prompt,
      Calibrations calibrations,
      Listener listener) {
    if (methods.isEmpty() || methods.get(0) != Methods.REFERENCE) {
      throw new IllegalArgumentException("the first method must be the reference, " + Methods.REFERENCE.name());
    }
    this.name = name;
    this.model = decoder.model();
    this.decoder = decoder;
    this.sets = sets;
    this.prompt = prompt;
    this.calibrations = calibrations;
    this.listener = listener;
    methods.forEach(method -> results.add(new MethodResult(method)));
  }

  /**
   * Runs until all is done or {@code stop} says true, which is asked before every step.
   *
   * @return what was found; samples under way when it was stopped are left out
   */
  public Outcome run(BooleanSupplier stop) {
    stopped = stop;
    List<List<Sample>> batches = batches();
    for (List<Sample> batch : batches) {
      for (MethodResult result : results) {
        total += batch.stream().mapToLong(sample -> run(sample, result)).sum();
      }
    }
    boolean complete = true;
    for (int i = 0; i < batches.size() && complete; i++) {
      complete = run(batches.get(i), i == 0);
      listener.advanced(outcome(complete && i == batches.size() - 1));
    }
    return outcome(complete);
  }

  /** Texts and tasks take turns, so that an evaluation that is stopped has some of each. */
  private List<List<Sample>> batches() {
    List<List<Sample>> batches = new ArrayList<>();
    int longest = sets.values().stream().mapToInt(List::size).max().orElse(0);
    for (int from = 0; from < longest; from += BATCH) {
      for (List<Sample> samples : sets.values()) {
        if (from < samples.size()) {
          batches.add(samples.subList(from, Math.min(samples.size(), from + BATCH)));
        }
      }
    }
    return batches;
  }

  /** Tokens of a sample that a method has to run. */
  private int run(Sample sample, MethodResult result) {
    boolean shared = sample.task() && prompt == PromptMode.EXACT && result != results.get(0);
    return sample.length() - (shared ? sample.scoredFrom() : 0);
  }

  private boolean run(List<Sample> batch, boolean first) {
    Scorer reference = null;
    HeadErrors errors = null;
    List<KvSequence> exact = new ArrayList<>();
    int tokens = batch.stream().mapToInt(Sample::length).max().orElse(0) + TIMED_STEPS + 1;
    MethodEntry.Request request =
        new MethodEntry.Request(model.geometry(), batch.size(), tokens, calibrations);
    try (KvCache referenceCache = Methods.REFERENCE.factory().create(request)) {
      for (MethodResult result : results) {
        Scorer scorer = new Scorer(batch, model.tokenizer(), model.config().vocabulary(), reference);
        if (reference == null) {
          batch.forEach(sample -> exact.add(referenceCache.newSequence()));
          if (!run(batch, result, scorer, exact)) {
            return false;
          }
          if (first) {
            errors = new HeadErrors(decoder, exact.get(0), batch.get(0));
          }
          reference = scorer;
        } else if (result.failure() == null) {
          if (!run(batch, result, scorer, request, exact, errors)) {
            return false;
          }
        }
      }
    }
    return true;
  }

  /** One method with a cache of its own. A method that fails is left out from then on; the others go on. */
  private boolean run(
      List<Sample> batch,
      MethodResult result,
      Scorer scorer,
      MethodEntry.Request request,
      List<KvSequence> exact,
      @Nullable HeadErrors errors) {
    try (KvCache cache = result.method().factory().create(request)) {
      List<KvSequence> sequences = new ArrayList<>();
      for (int i = 0; i < batch.size(); i++) {
        KvSequence sequence = cache.newSequence();
        sequences.add(sequence);
        if (batch.get(i).task() && prompt == PromptMode.EXACT && batch.get(i).scoredFrom() > 0) {
          for (int layer = 0; layer < model.geometry().layers(); layer++) {
            HeadErrors.transfer(model, exact.get(i), sequence, layer, batch.get(i).scoredFrom());
          }
        }
      }
      if (!run(batch, result, scorer, sequences)) {
        return false;
      }
      if (errors != null) {
        result.headErrors(errors.of(result.method(), calibrations));
      }
    } catch (KvException | IllegalArgumentException e) {
      result.failed(String.valueOf(e.getMessage()));
    }
    return true;
  }

  /** Runs the samples to their ends and takes down what they say of the method. */
  private boolean run(List<Sample> batch, MethodResult result, Scorer scorer, List<KvSequence> sequences) {
    KvCache cache = sequences.get(0).cache();
    boolean watchMemory = result.memory().isEmpty() && !batch.get(0).task();
    String doing = result.method().name() + " on " + batch.get(0).set();
    long[] run = {0};
    listener.progress(done, total, doing);
    StreamRunner.Watcher watcher =
        tokens -> {
          done += tokens;
          run[0] += tokens;
          if (watchMemory) {
            result.add((int) (run[0] / batch.size()), (double) cache.stats().bytes() / batch.size());
          }
          listener.progress(done, total, doing);
        };
    if (!new StreamRunner(decoder, stopped).run(batch, sequences, scorer, watcher)) {
      return false;
    }
    scorer.deliver(result);
    // Texts are all of one length, so they tell best what a cache holds; tasks must do where there are none.
    if (!result.microsPerToken().present() || watchMemory) {
      result.holds(cache, batch.size(), batch.get(0).length());
      time(result, sequences.get(0), batch.get(0));
    }
    return true;
  }

  /** Times steps of one sequence on a fork, as a conversation would go on. */
  private void time(MethodResult result, KvSequence sequence, Sample sample) {
    int token = sample.tokens()[sample.length()];
    List<Double> steps = new ArrayList<>();
    List<Double> attention = new ArrayList<>();
    try (KvSequence fork = sequence.fork()) {
      for (int i = 0; i <= TIMED_STEPS; i++) {
        long begin = System.nanoTime();
        long before = decoder.attentionNanos();
        decoder.decode(fork, token);
        if (i > 0) {
          steps.add((System.nanoTime() - begin) / 1e3);
          attention.add((decoder.attentionNanos() - before) / 1e3);
        }
      }
    }
    result.takes(median(steps), median(attention));
  }

  /** The median, with the standard error of a mean as a hint of its spread. */
  private static Figure median(List<Double> values) {
    Figure mean = Figure.mean(values);
    List<Double> sorted = values.stream().sorted().toList();
    return new Figure(sorted.get(sorted.size() / 2), mean.error(), sorted.size());
  }

  private Outcome outcome(boolean complete) {
    ModelConfig config = model.config();
    String about =
        String.format(
            Locale.ROOT,
            "%s, %.1fM parameters, %d layers, %d query heads, %d kv heads, head dim %d",
            config.type(),
            model.parameters() / 1e6,
            config.layers(),
            config.queryHeads(),
            config.kvHeads(),
            config.headDim());
    return new Outcome(
        name,
        about,
        prompt,
        Kvasir.defaultBackend(),
        Kvasir.threads(),
        complete,
        (System.nanoTime() - start) / 1e9,
        List.copyOf(results));
  }
}
