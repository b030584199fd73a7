package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** What a model predicts on some samples with any cache, beside what it predicts with a 16-bit one: for calibration. */
final class Predictions {

  /**
   * What a method came to.
   *
   * @param divergence of predictions from those of the 16-bit cache, in nats a token
   * @param stats of the cache in the end
   */
  record Outcome(double divergence, KvStats stats) {}

  private final Decoder decoder;
  private final List<Sample> samples;
  private final Scorer exact;

  /** Runs the 16-bit cache. */
  Predictions(Decoder decoder, List<Sample> samples) {
    this.decoder = decoder;
    this.samples = samples;
    this.exact = scorer(null);
    run(new HalfPrecision(), exact);
  }

  /**
   * What a method comes to.
   *
   * @throws IllegalArgumentException if no sample fills a page: all methods are alike then, and nothing is learned of any
   */
  Outcome with(KvMethod method) {
    Scorer scorer = scorer(exact);
    KvStats stats = run(method, scorer);
    if (stats.total().pageBytes() == 0) {
      throw new IllegalArgumentException("no text to calibrate on is long enough for a page");
    }
    return new Outcome(scorer.divergence(), stats);
  }

  private Scorer scorer(@Nullable Scorer reference) {
    Model model = decoder.model();
    return new Scorer(samples, model.tokenizer(), model.config().vocabulary(), reference);
  }

  private KvStats run(KvMethod method, Scorer scorer) {
    try (KvCache cache = KvCache.builder(decoder.model().geometry()).method(method).build()) {
      List<KvSequence> sequences = samples.stream().map(sample -> cache.newSequence()).toList();
      new StreamRunner(decoder, () -> false).run(samples, sequences, scorer, tokens -> {});
      return cache.stats();
    }
  }
}
