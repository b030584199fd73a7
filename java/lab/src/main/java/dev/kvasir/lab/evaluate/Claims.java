package dev.kvasir.lab.evaluate;

import dev.kvasir.lab.evaluate.Claim.Metric;
import java.util.List;

/** What the papers say, to be asked again of every model: one line a claim. */
public final class Claims {

  private static final List<Metric> ALL_METRICS =
      List.of(Metric.DIVERGENCE, Metric.BITS_PER_BYTE_FAR, Metric.PREFIX, Metric.EXACT);

  /** All of them. */
  public static final List<Claim> ALL =
      List.of(
          better("PatternKV at 2 bits is better than uniform at 2 bits", "pattern-2", "uniform-2"),
          better("PatternKV at 4 bits is better than uniform at 4 bits", "pattern-4", "uniform-4"),
          better("matching by range is better than by Euclidean distance", "pattern-2", "pattern-2-l2"),
          better("testing whether values gain from patterns pays", "pattern-2", "pattern-2-no-value-test"),
          better("PatternKV as its paper matches: a threshold for values is better than none", "pattern-2-paper-matching",
              "pattern-2-no-threshold"),
          better("testing whether keys gain from patterns pays", "pattern-2", "pattern-2-no-key-test"),
          better("patterns from decoded pages pay", "pattern-2", "pattern-2-no-new"),
          better("patterns for keys pay", "pattern-2", "pattern-2-values-only"),
          better("patterns for values pay", "pattern-2", "pattern-2-keys-only"),
          better("PM-KVQ: the equivalent shift is better than the direct one", "pm-kvq-2-equivalent",
              "pm-kvq-2-direct"),
          better("PM-KVQ: the equivalent shift is better than the modified one", "pm-kvq-2-equivalent",
              "pm-kvq-2-modified"),
          better("PM-KVQ: progressive is better than immediate 2 bits", "pm-kvq-2", "pm-kvq-2-immediate"),
          better("PM-KVQ: a plan of bits by layer is better than one floor at equal memory", "pm-kvq-3-plan", "pm-kvq-3"),
          better("MixKVQ: query-aware tiers are better than error-only tiers at equal bits", "mix-kvq-2.7",
              "mix-kvq-2.7-error-only"),
          better("CommVQ at 1 bit is better than uniform at 1 bit", "comm-vq-1", "uniform-1"),
          new Claim("CommVQ at 1 bit is close to uniform at 2 bits (KL within a factor of 2)", "comm-vq-1",
              "uniform-2", ALL_METRICS, 2));

  private Claims() {}

  private static Claim better(String text, String better, String worse) {
    return new Claim(text, better, worse, ALL_METRICS, 1);
  }
}
