package dev.kvasir.method;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Need;
import dev.kvasir.ShrinkPolicy;
import dev.kvasir.Side;
import dev.kvasir.Testing;
import dev.kvasir.calibrate.KeyScaling;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.method.PmKvq.Shift;
import dev.kvasir.rope.RopePairs;
import java.time.Duration;
import java.util.List;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;

class PmKvqTest {

  private static final int ROW = 64;
  private static final KvGeometry ONE_LAYER =
      KvGeometry.builder().layers(1).queryHeads(4).kvHeads(2).headDim(32).build();
  private final float[] rows = Testing.gaussian(new Random(5), 40 * 128 * ROW);

  private static long bytesOf(KvMethod method, float[] rows, int tokens) {
    try (KvCache cache = Testing.cache(ONE_LAYER).method(method).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, tokens);
      return cache.stats().bytes();
    }
  }

  /** Appends page by page and checks the budget each time. */
  private void fill(KvCache cache, KvSequence sequence, int tokens) {
    float[] page = new float[128 * ROW];
    for (int t = 0; t < tokens; t += 128) {
      int count = Math.min(128, tokens - t);
      System.arraycopy(rows, t * ROW, page, 0, count * ROW);
      sequence.append(0, page, page, count);
      assertTrue(cache.stats().bytes() <= cache.stats().budgetBytes());
    }
  }

  @Test
  void bitsGoDownAsTheBudgetFillsAndStatsTellHow() {
    int tokens = 30 * 128;
    long budget = bytesOf(PmKvq.floor(4).startBits(4), rows, tokens);
    try (KvCache cache = Testing.cache(ONE_LAYER).method(PmKvq.floor(2)).budgetBytes(budget).build();
        KvSequence sequence = cache.newSequence()) {
      fill(cache, sequence, 4 * 128);
      KvStats.Layer early = cache.stats().layers().get(0);
      assertEquals(16, early.keyBits());
      assertEquals(new KvStats.Shrinks(0, 0, Duration.ZERO, List.of()), early.shrinks());

      fill(cache, sequence, tokens - 4 * 128);
      KvStats.Layer late = cache.stats().layers().get(0);
      assertTrue(late.keyBits() <= 4 && late.keyBits() > 2, () -> "bits " + late.keyBits());
      assertEquals(late.keyBits(), late.valueBits());
      assertTrue(cache.stats().peakBytes() <= budget);
      KvStats.Shrinks shrinks = late.shrinks();
      assertTrue(shrinks.count() > 20 && shrinks.freedBytes() > budget / 4 && !shrinks.time().isZero());
      assertEquals(List.of(8, 4), shrinks.steps().stream().map(KvStats.Step::bits).toList().subList(0, 2));
      assertEquals(shrinks.count(), cache.stats().total().shrinks().count());
      assertEquals(List.of(), cache.stats().total().shrinks().steps());
    }
  }

  @Test
  void bothPoliciesEndWithWhatDirectQuantisationGives() {
    int tokens = 10 * 128;
    KvMethod direct = PmKvq.floor(2).startBits(2).sinks(0);
    long budget = bytesOf(direct, rows, tokens);
    for (ShrinkPolicy policy : ShrinkPolicy.values()) {
      try (KvCache narrow = Testing.cache(ONE_LAYER).method(direct).build();
          KvCache cache =
              Testing.cache(ONE_LAYER).method(PmKvq.floor(2).sinks(0).policy(policy)).budgetBytes(budget).build()) {
        KvSequence expected = narrow.newSequence();
        KvSequence sequence = cache.newSequence();
        expected.append(0, rows, rows, tokens);
        fill(cache, sequence, tokens);
        for (Side side : Side.values()) {
          assertArrayEquals(expected.read(0, side, 0, tokens), sequence.read(0, side, 0, tokens), policy.toString());
        }
      }
    }
  }

  @Test
  void theOtherShiftsLoseMore() {
    int tokens = 10 * 128;
    long budget = bytesOf(PmKvq.paper(4).startBits(4), rows, tokens);
    double[] errors = new double[Shift.values().length];
    for (Shift shift : Shift.values()) {
      PmKvq method = PmKvq.paper(2).shift(shift);
      try (KvCache cache = Testing.cache(ONE_LAYER).method(method).budgetBytes(budget).build();
          KvSequence sequence = cache.newSequence()) {
        fill(cache, sequence, tokens);
        float[] read = sequence.read(0, Side.KEYS, 0, tokens);
        for (int i = 0; i < read.length; i++) {
          errors[shift.ordinal()] += Math.pow(read[i] - rows[i], 2);
        }
      }
    }
    assertTrue(errors[0] < errors[1] && errors[0] < errors[2], () -> java.util.Arrays.toString(errors));
  }

  @Test
  void floorsByLayerAreKept() {
    KvMethod method = PmKvq.floors(List.of(8, 2), List.of(4, 2));
    KvGeometry geometry = Testing.small();
    long budget;
    try (KvCache floor =
            Testing.cache(geometry).method(PmKvq.floors(List.of(8, 2), List.of(4, 2)).startBits(8)).build();
        KvSequence sequence = floor.newSequence()) {
      sequence.append(0, rows, rows, 5 * 128);
      sequence.append(1, rows, rows, 5 * 128);
      budget = floor.stats().bytes();
    }
    try (KvCache cache = Testing.cache(geometry).method(method).budgetBytes(budget).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, 5 * 128);
      sequence.append(1, rows, rows, 5 * 128);
      KvStats stats = cache.stats();
      assertEquals(8, stats.layers().get(0).keyBits());
      assertTrue(stats.layers().get(0).valueBits() >= 4);
      KvStats before = cache.stats();
      BudgetExceededException e =
          assertThrows(BudgetExceededException.class, () -> sequence.append(0, rows, rows, 30 * 128));
      assertTrue(e.getMessage().contains("floor"), e::getMessage);
      assertEquals(before, cache.stats());
      assertEquals(5 * 128, sequence.length(0));
    }
  }

  @Test
  void keyScalingIsAppliedByTheCache() {
    float[] lambda = new float[ROW];
    for (int i = 0; i < ROW; i++) {
      lambda[i] = i % 32 % 16 == 3 ? 20f : 1f;
    }
    float[] keys = rows.clone();
    for (int i = 0; i < keys.length; i++) {
      keys[i] *= lambda[i % ROW];
    }
    KeyScaling scaling = KeyScaling.of(ONE_LAYER, RopePairs.HALVES, List.of(lambda));
    KvMethod plain = PmKvq.floor(4).startBits(4).keyAxis(PmKvq.KeyAxis.TOKEN);
    KvMethod scaled = scaling.applyTo(plain);
    assertEquals(plain.name() + "-scaled", scaled.name());
    assertEquals(Set.of(Need.KEY_SCALING), plain.needs());
    assertEquals(Set.of(), scaled.needs());
    // Where nothing is said of the axis, scaling says it.
    assertEquals(scaled.keys(0), scaling.applyTo(PmKvq.floor(4).startBits(4)).keys(0));
    assertEquals(0.0, PmKvq.floor(4).keys(0).options().get("axis"));
    assertEquals(
        0.0, scaling.applyTo(PmKvq.floor(4).keyAxis(PmKvq.KeyAxis.CHANNEL)).keys(0).options().get("axis"));
    assertEquals(plain.sinks(), scaled.sinks());
    float[] query = Testing.gaussian(new Random(6), 128);
    int tokens = 3 * 128;
    double[] errors = new double[2];
    for (int which = 0; which < 2; which++) {
      try (KvCache exact = Testing.cache(ONE_LAYER).build();
          KvCache cache = Testing.cache(ONE_LAYER).method(which == 0 ? plain : scaled).build()) {
        float[] expected = new float[128];
        float[] output = new float[128];
        KvSequence full = exact.newSequence();
        KvSequence sequence = cache.newSequence();
        full.append(0, keys, rows, tokens);
        sequence.append(0, keys, rows, tokens);
        full.attend(0, query, expected);
        sequence.attend(0, query, output);
        float[] read = sequence.read(0, Side.KEYS, 0, tokens);
        for (int i = 0; i < read.length; i++) {
          errors[which] += Math.pow(read[i] - keys[i], 2) / lambda[i % ROW] / lambda[i % ROW];
        }
        for (int i = 0; i < output.length; i++) {
          assertEquals(expected[i], output[i], 1.0);
        }
      }
    }
    // Outlier channels widen every token's range 20 times unless they are scaled.
    assertTrue(errors[1] < errors[0] / 10, () -> errors[0] + " " + errors[1]);
    assertThrows(
        IllegalArgumentException.class, () -> Testing.cache(Testing.small()).method(scaled).build().close());
  }

  /**
   * Channels that differ by decades, a tight budget, and no calibration: attention must stay what it was. Per token, which
   * the default was once, one large channel takes the precision of all others away.
   */
  @Test
  void theDefaultDoesNoHarmWithoutCalibration() {
    KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(4).kvHeads(1).headDim(64).build();
    Random random = new Random(11);
    int tokens = 8 * 128;
    float[] keys = Testing.gaussian(random, tokens * 64);
    float[] values = Testing.gaussian(random, tokens * 64);
    float[] query = Testing.gaussian(random, 4 * 64);
    for (int i = 0; i < keys.length; i++) {
      keys[i] *= i % 64 % 8 == 3 ? 30 : 1; // large, and queries hardly look there
    }
    for (int i = 0; i < query.length; i++) {
      query[i] *= i % 8 == 3 ? 0.05f : 1;
    }
    double safe = attentionError(geometry, PmKvq.floor(2).startBits(2), keys, values, query, tokens);
    double perToken =
        attentionError(
            geometry, PmKvq.floor(2).startBits(2).keyAxis(PmKvq.KeyAxis.TOKEN), keys, values, query, tokens);
    System.out.printf("outlier channels, 2 bits, no calibration: NMSE %.3f, per token %.3f%n", safe, perToken);
    assertTrue(safe < 0.5, () -> "NMSE " + safe);
    assertTrue(perToken > 2 * safe, () -> "NMSE " + perToken + " per token");
  }

  private static double attentionError(
      KvGeometry geometry, KvMethod method, float[] keys, float[] values, float[] query, int tokens) {
    double[] expected = Testing.attention(geometry, 0, query, keys, values, 0, tokens);
    float[] output = new float[query.length];
    try (KvCache cache = Testing.cache(geometry).method(method).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, keys, values, tokens);
      sequence.attend(0, query, output);
    }
    double error = 0;
    double norm = 0;
    for (int i = 0; i < output.length; i++) {
      error += Math.pow(output[i] - expected[i], 2);
      norm += expected[i] * expected[i];
    }
    return error / norm;
  }

  @Test
  void numbersAreChecked() {
    assertThrows(IllegalArgumentException.class, () -> PmKvq.floor(2).grid(Grid.BY_WIDTH));
    for (Shift other : new Shift[] {Shift.DIRECT, Shift.MODIFIED}) {
      KvMethod method = PmKvq.floor(2).shift(other);
      assertThrows(IllegalArgumentException.class, () -> Testing.cache(ONE_LAYER).method(method).build().close());
    }
    assertThrows(IllegalArgumentException.class, () -> PmKvq.floor(1));
    assertThrows(IllegalArgumentException.class, () -> PmKvq.floor(3));
    assertThrows(IllegalArgumentException.class, () -> PmKvq.floor(2).startBits(32));
    assertThrows(IllegalArgumentException.class, () -> PmKvq.floor(2).sinks(-1));
    assertThrows(IllegalArgumentException.class, () -> PmKvq.floors(List.of(), List.of(2)));
    assertThrows(
        IllegalArgumentException.class,
        () ->
            Testing.cache(KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(32).build())
                .method(PmKvq.floors(List.of(2, 4), List.of(2, 4)))
                .build()
                .close());
    assertEquals("pm-16to2", PmKvq.floor(2).name());
    assertEquals("pm-8to4", PmKvq.floor(4).startBits(8).name());
    assertEquals("pm-16toplan", PmKvq.floors(List.of(2, 4), List.of(2, 2)).name());
  }
}
