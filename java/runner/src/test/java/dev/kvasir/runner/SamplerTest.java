package dev.kvasir.runner;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

class SamplerTest {

  /** Probabilities 0.4, 0.3, 0.2, 0.1 in this order of tokens: 2, 0, 3, 1. */
  private static final float[] LOGITS = {ln(0.3), ln(0.1), ln(0.4), ln(0.2)};

  private static final int[] NOTHING = {};

  private static float ln(double p) {
    return (float) Math.log(p);
  }

  private static double[] frequencies(Sampling sampling, int draws) {
    Sampler sampler = new Sampler(sampling);
    double[] counts = new double[LOGITS.length];
    for (int i = 0; i < draws; i++) {
      counts[sampler.next(LOGITS, NOTHING, 0)] += 1.0 / draws;
    }
    return counts;
  }

  @Test
  void greedyTakesTheLikeliestAndTheFirstOfEquals() {
    Sampler sampler = new Sampler(Sampling.GREEDY);
    assertEquals(2, sampler.next(LOGITS, NOTHING, 0));
    assertEquals(1, sampler.next(new float[] {0, 5, 5, Float.NaN}, NOTHING, 0));
    assertEquals(1, sampler.next(new float[] {Float.NaN, -5}, NOTHING, 0));
    assertThrows(
        IllegalArgumentException.class, () -> sampler.next(new float[] {Float.NaN, Float.NaN}, NOTHING, 0));
    assertThrows(
        IllegalArgumentException.class, () -> sampler.next(new float[] {0, Float.POSITIVE_INFINITY}, NOTHING, 0));
  }

  /** 20,000 draws: five standard deviations are below 0.018. */
  @Test
  void drawsFollowTheProbabilities() {
    double[] plain = frequencies(Sampling.temperature(1, 7), 20000);
    double[] expected = {0.3, 0.1, 0.4, 0.2};
    assertArrayEquals(expected, plain, 0.018);
    // At temperature 1/2 probabilities go with their squares: 9, 1, 16, 4 of 30.
    assertArrayEquals(
        new double[] {0.3, 1 / 30.0, 16 / 30.0, 4 / 30.0}, frequencies(Sampling.temperature(0.5, 7), 20000), 0.018);
  }

  @Test
  void cutsKeepTheLikeliest() {
    assertArrayEquals(
        new double[] {3 / 7.0, 0, 4 / 7.0, 0}, frequencies(new Sampling(1, 2, 1, 0, 1, 64, 1), 20000), 0.018);
    // 0.4 and 0.3 reach 0.7; of 0.71, a third is needed.
    assertArrayEquals(
        new double[] {3 / 7.0, 0, 4 / 7.0, 0}, frequencies(new Sampling(1, 0, 0.69, 0, 1, 64, 1), 20000), 0.018);
    assertEquals(0, frequencies(new Sampling(1, 0, 0.71, 0, 1, 64, 1), 2000)[1]);
    assertTrue(frequencies(new Sampling(1, 0, 0.71, 0, 1, 64, 1), 2000)[3] > 0);
    // Half of 0.4: all but 0.1.
    assertArrayEquals(
        new double[] {3 / 9.0, 0, 4 / 9.0, 2 / 9.0},
        frequencies(new Sampling(1, 0, 1, 0.49, 1, 64, 1), 20000), 0.018);
  }

  @Test
  void repetitionsArePunishedOnceAndWithinTheWindow() {
    Sampling sampling = new Sampling(0, 0, 1, 0, 2, 2, 0);
    float[] logits = {1, 3, 4, -1};
    assertEquals(2, new Sampler(sampling).next(logits, new int[] {2, 0, 0}, 3)); // 2 is beyond the window
    assertEquals(1, new Sampler(sampling).next(logits, new int[] {2, 2}, 2)); // 4 / 2 once, not twice
    assertEquals(0, new Sampler(sampling).next(new float[] {-1.5f, -1}, new int[] {1}, 1)); // -1 * 2
    assertArrayEquals(new float[] {1, 3, 4, -1}, logits);
  }

  @Test
  void theSeedDecides() {
    Set<List<Integer>> seen = new HashSet<>();
    for (long seed = 0; seed < 20; seed++) {
      List<Integer> first = draws(seed);
      assertEquals(first, draws(seed));
      seen.add(first);
    }
    assertEquals(20, seen.size());
  }

  private static List<Integer> draws(long seed) {
    Sampler sampler = new Sampler(Sampling.temperature(1, seed));
    return java.util.stream.IntStream.range(0, 30).mapToObj(i -> sampler.next(LOGITS, NOTHING, 0)).toList();
  }

  @Test
  void rangesAreChecked() {
    assertThrows(IllegalArgumentException.class, () -> new Sampling(-1, 0, 1, 0, 1, 64, 0));
    assertThrows(IllegalArgumentException.class, () -> new Sampling(Double.NaN, 0, 1, 0, 1, 64, 0));
    assertThrows(IllegalArgumentException.class, () -> new Sampling(1, -1, 1, 0, 1, 64, 0));
    assertThrows(IllegalArgumentException.class, () -> new Sampling(1, 0, 0, 0, 1, 64, 0));
    assertThrows(IllegalArgumentException.class, () -> new Sampling(1, 0, 1, 2, 1, 64, 0));
    assertThrows(IllegalArgumentException.class, () -> new Sampling(1, 0, 1, 0, 0, 64, 0));
  }
}
