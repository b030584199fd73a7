package dev.kvasir.runner;

import java.util.Arrays;
import java.util.SplittableRandom;

/** Chooses tokens by a {@link Sampling}. Keeps the state of its draws; not for use by several threads. */
public final class Sampler {

  /**
   * Logits so far below the highest, in units of the temperature, are never drawn: a vocabulary of them together has a
   * probability of 1e-10.
   */
  private static final double NEVER = 36;

  private final Sampling sampling;
  private final SplittableRandom random;
  private float[] scaled = new float[0];
  private long[] candidates = new long[0];

  /** Begins with the seed. */
  public Sampler(Sampling sampling) {
    this.sampling = sampling;
    this.random = new SplittableRandom(sampling.seed());
  }

  /**
   * Chooses a token.
   *
   * @param logits one for each token of the vocabulary; left alone
   * @param history an array that begins with the tokens so far
   * @param length how many those are
   * @throws IllegalArgumentException if no logit is a finite number
   */
  public int next(float[] logits, int[] history, int length) {
    float[] weighed = penalised(logits, history, length);
    int best = likeliest(weighed);
    if (!Float.isFinite(weighed[best])) {
      throw new IllegalArgumentException("the highest logit is " + weighed[best]);
    }
    return sampling.temperature() == 0 ? best : draw(weighed, weighed[best]);
  }

  /** The index of the highest logit, the first of equals. NaN is below all. */
  public static int likeliest(float[] logits) {
    int best = 0;
    for (int i = 1; i < logits.length; i++) {
      if (logits[i] > logits[best] || Float.isNaN(logits[best])) {
        best = i;
      }
    }
    return best;
  }

  private float[] penalised(float[] logits, int[] history, int length) {
    if (sampling.repetitionPenalty() == 1) {
      return logits;
    }
    if (scaled.length != logits.length) {
      scaled = new float[logits.length];
    }
    System.arraycopy(logits, 0, scaled, 0, logits.length);
    float penalty = (float) sampling.repetitionPenalty();
    for (int i = Math.max(0, length - sampling.repetitionWindow()); i < length; i++) {
      // From the logits, so that a token that was seen twice is not punished twice.
      float logit = logits[history[i]];
      scaled[history[i]] = logit > 0 ? logit / penalty : logit * penalty;
    }
    return scaled;
  }

  private int draw(float[] logits, float highest) {
    double temperature = sampling.temperature();
    if (candidates.length < logits.length) {
      candidates = new long[logits.length];
    }
    int count = 0;
    for (int i = 0; i < logits.length; i++) {
      if (logits[i] >= highest - NEVER * temperature) {
        // Ordered by falling logit, then by index.
        candidates[count++] = (long) ~ordered(logits[i]) << 32 | i;
      }
    }
    Arrays.sort(candidates, 0, count);
    if (sampling.topK() > 0) {
      count = Math.min(count, sampling.topK());
    }
    double total = 0;
    for (int i = 0; i < count; i++) {
      total += weight(logits, highest, i);
    }
    double kept = 0;
    int last = 0;
    for (; last < count; last++) {
      double weight = weight(logits, highest, last);
      // Weights are parts of the likeliest one's, which is 1.
      if (last > 0 && (kept >= sampling.topP() * total || weight < sampling.minP())) {
        break;
      }
      kept += weight;
    }
    double drawn = random.nextDouble() * kept;
    for (int i = 0; i < last - 1; i++) {
      drawn -= weight(logits, highest, i);
      if (drawn < 0) {
        return (int) candidates[i];
      }
    }
    return (int) candidates[last - 1];
  }

  private double weight(float[] logits, float highest, int candidate) {
    return Math.exp((logits[(int) candidates[candidate]] - highest) / sampling.temperature());
  }

  /** An int that is ordered as the float is. */
  private static int ordered(float value) {
    int bits = Float.floatToIntBits(value);
    return bits ^ (bits >> 31 & Integer.MAX_VALUE);
  }
}
