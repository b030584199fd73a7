package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Kvasir;
import dev.kvasir.calibrate.ProfileException;
import dev.kvasir.error.KvException;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.ModelConfig;
import java.io.UncheckedIOException;
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

  /** Most decoding steps that are timed, and before them one that is not; none is begun after so long. */
  private static final int TIMED_STEPS = 8;

  private static final long TIMED_NANOS = 1_500_000_000L;

  /** Hears how things go. */
  public interface Listener {
    /** Does not listen. */
    Listener NONE = new Listener() {};

    /** So many tokens of all have been run; {@code doing} says what is being run. */
    default void progress(long done, long total, String doing) {}

    /** A batch of samples has been run for one more method. */
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
      SampleBatch counted = new SampleBatch(decoder, batch);
      total += counted.tokens(false) + (results.size() - 1) * counted.tokens(prompt == PromptMode.EXACT);
    }
    boolean complete = true;
    for (int i = 0; i < batches.size() && complete; i++) {
      complete = run(new SampleBatch(decoder, batches.get(i)), i == 0);
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

  private boolean run(SampleBatch batch, boolean first) {
    MethodEntry.Request request = batch.request(calibrations);
    MethodResult reference = results.get(0);
    try (KvCache cache = Methods.REFERENCE.factory().create(request)) {
      Scorer scorer = scorer(batch, null);
      List<KvSequence> exact = read(batch, cache, reference);
      if (exact == null || !run(batch, reference, scorer, exact)) {
        return false;
      }
      batch.exact(exact);
      HeadErrors errors = first ? new HeadErrors(decoder, exact.get(0), batch.samples().get(0)) : null;
      if (first) {
        lengths(batch, reference);
      }
      for (MethodResult result : results.subList(1, results.size())) {
        if (result.failure() == null && !run(batch, result, scorer(batch, scorer), request, errors)) {
          return false;
        }
        listener.advanced(outcome(false));
      }
    }
    return true;
  }

  private Scorer scorer(SampleBatch batch, @Nullable Scorer reference) {
    return new Scorer(batch.samples(), model.tokenizer(), model.config().vocabulary(), reference);
  }

  /** One method with a cache of its own. A method that fails is left out from then on; the others go on. */
  private boolean run(
      SampleBatch batch,
      MethodResult result,
      Scorer scorer,
      MethodEntry.Request request,
      @Nullable HeadErrors errors) {
    try (KvCache cache = result.method().factory().create(request)) {
      List<KvSequence> sequences =
          prompt == PromptMode.EXACT ? batch.transfer(cache) : read(batch, cache, result);
      if (sequences == null || !run(batch, result, scorer, sequences)) {
        return false;
      }
      if (errors != null) {
        result.headErrors(errors.of(result.method(), calibrations));
        lengths(batch, result);
      }
    } catch (KvException | IllegalArgumentException | ProfileException | UncheckedIOException e) {
      result.failed(String.valueOf(e.getMessage()));
    }
    return true;
  }

  private @Nullable List<KvSequence> read(SampleBatch batch, KvCache cache, MethodResult result) {
    String doing = doing(batch, result);
    return batch.read(
        cache,
        new StreamRunner(decoder, stopped),
        tokens -> {
          done += tokens;
          listener.progress(done, total, doing);
        });
  }

  private static String doing(SampleBatch batch, MethodResult result) {
    return result.method().name() + " on " + batch.samples().get(0).set();
  }

  private void lengths(SampleBatch batch, MethodResult result) {
    int tokens = batch.samples().get(0).length();
    result.bitsAtLengths(Lengths.bits(result.method(), batch.first(), tokens, calibrations));
  }

  /** Runs the samples to their ends and takes down what they say of the method. */
  private boolean run(SampleBatch batch, MethodResult result, Scorer scorer, List<KvSequence> sequences) {
    List<Sample> samples = batch.samples();
    KvCache cache = sequences.get(0).cache();
    boolean texts = !samples.get(0).task();
    boolean watchMemory = result.memory().isEmpty() && texts;
    String doing = doing(batch, result);
    long[] run = {sequences.stream().mapToLong(KvSequence::length).sum()};
    listener.progress(done, total, doing);
    StreamRunner.Watcher watcher =
        tokens -> {
          done += tokens;
          run[0] += tokens;
          if (watchMemory) {
            result.add((int) (run[0] / samples.size()), (double) cache.stats().bytes() / samples.size());
          }
          listener.progress(done, total, doing);
        };
    if (!new StreamRunner(decoder, stopped).run(samples, sequences, scorer, watcher)) {
      return false;
    }
    scorer.deliver(result);
    // Texts are all of one length, so they tell best what a cache holds; tasks must do where there are none.
    if (!result.microsPerToken().present() || watchMemory) {
      result.holds(cache, sequences.size(), samples.get(0).length());
      time(result, sequences.get(0), samples.get(0));
    }
    return true;
  }

  /** Times steps of one sequence on a fork, as a conversation would go on. */
  private void time(MethodResult result, KvSequence sequence, Sample sample) {
    int token = sample.tokens()[sample.length()];
    List<Double> steps = new ArrayList<>();
    List<Double> attention = new ArrayList<>();
    long first = System.nanoTime();
    try (KvSequence fork = sequence.fork()) {
      for (int i = 0; i <= TIMED_STEPS && (i < 2 || System.nanoTime() - first < TIMED_NANOS); i++) {
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
