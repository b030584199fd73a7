package dev.kvasir.calibrate;

import static dev.kvasir.Testing.assertNames;
import static dev.kvasir.Testing.gaussian;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvGeometry;
import dev.kvasir.Testing;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.stream.DoubleStream;
import org.junit.jupiter.api.Test;

class KeyScalingTest {

  private static final int DIM = 64;
  private static final int TOKENS = 96;
  private static final Rope ROPE = Rope.plain(RopePairs.HALVES, 10_000, DIM);
  private static final KeyScaling.Options OPTIONS = KeyScaling.Options.of(ROPE).bits(2);

  private static KvGeometry geometry() {
    return KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(DIM).build();
  }

  /** Keys with a bias in four slow pairs that queries hardly look at; before RoPE. */
  private static AttentionSample sample(Random random) {
    float[] keys = gaussian(random, TOKENS * 2 * DIM, 1);
    float[] values = gaussian(random, TOKENS * 2 * DIM, 1);
    float[] queries = gaussian(random, TOKENS * 4 * DIM, 0.3);
    for (int pair = 24; pair < 28; pair++) {
      double bias = (pair % 2 == 0 ? 17 : -17) * (1 + 0.3 * random.nextDouble());
      for (int channel : new int[] {pair, pair + DIM / 2}) {
        for (int i = channel; i < keys.length; i += DIM) {
          keys[i] += bias;
        }
        for (int i = channel; i < queries.length; i += DIM) {
          queries[i] *= 0.1f;
        }
      }
    }
    return new AttentionSample(TOKENS, keys, false, values, TOKENS, queries, false);
  }

  /** Rows turned by RoPE (rotate-half, base 10000) at positions first + scale * token, in double precision. */
  private static float[] rotated(float[] rows, int heads, double first, double scale) {
    float[] result = new float[rows.length];
    for (int row = 0; row < rows.length / DIM; row++) {
      double position = first + scale * (row / heads);
      for (int j = 0; j < DIM / 2; j++) {
        double angle = position * Math.pow(10_000, -2.0 * j / DIM);
        double a = rows[row * DIM + j];
        double b = rows[row * DIM + j + DIM / 2];
        result[row * DIM + j] = (float) (a * Math.cos(angle) - b * Math.sin(angle));
        result[row * DIM + j + DIM / 2] = (float) (a * Math.sin(angle) + b * Math.cos(angle));
      }
    }
    return result;
  }

  /** Normalised error of causal attention with keys stored per token at some width after scaling, in double. */
  private static double error(AttentionSample s, float[] keys, float[] queries, float[] lambda, int bits) {
    double[] stored = new double[keys.length];
    for (int row = 0; row < keys.length / DIM; row++) {
      float[] scaled = new float[DIM];
      int factors = row % 2 * DIM;
      for (int c = 0; c < DIM; c++) {
        scaled[c] = keys[row * DIM + c] / lambda[factors + c];
      }
      double[] read = Quantiser.stored(scaled, bits);
      for (int c = 0; c < DIM; c++) {
        stored[row * DIM + c] = read[c] * lambda[factors + c];
      }
    }
    double error = 0;
    double energy = 0;
    for (int token = 0; token < s.queryTokens(); token++) {
      int count = s.tokens() - s.queryTokens() + token + 1;
      for (int head = 0; head < 4; head++) {
        double[] right = weights(queries, (token * 4 + head) * DIM, keys, null, head / 2, count);
        double[] changed = weights(queries, (token * 4 + head) * DIM, keys, stored, head / 2, count);
        for (int c = 0; c < DIM; c++) {
          double exact = 0;
          double difference = 0;
          for (int t = 0; t < count; t++) {
            double value = s.values()[(t * 2 + head / 2) * DIM + c];
            exact += right[t] * value;
            difference += (changed[t] - right[t]) * value;
          }
          error += difference * difference;
          energy += exact * exact;
        }
      }
    }
    return error / energy;
  }

  private static double[] weights(float[] queries, int query, float[] keys, double[] stored, int kvHead, int count) {
    double[] weights = new double[count];
    for (int t = 0; t < count; t++) {
      for (int c = 0; c < DIM; c++) {
        int key = (t * 2 + kvHead) * DIM + c;
        weights[t] += queries[query + c] * (stored == null ? keys[key] : stored[key]) / Math.sqrt(DIM);
      }
    }
    double most = DoubleStream.of(weights).max().orElseThrow();
    double sum = 0;
    for (int t = 0; t < count; t++) {
      sum += weights[t] = Math.exp(weights[t] - most);
    }
    for (int t = 0; t < count; t++) {
      weights[t] /= sum;
    }
    return weights;
  }

  private static KeyScaling calibrate(KeyScaling.Options options, AttentionSample... samples) {
    return KeyScaling.calibrate(geometry(), options, layer -> List.of(samples));
  }

  @Test
  void findsTheAlphaOfLeastErrorByItsDefinition() {
    AttentionSample sample = sample(Testing.random("findsTheAlphaOfLeastErrorByItsDefinition"));
    KeyScaling scaling = calibrate(OPTIONS, sample);
    double[] errors = scaling.errors(0);
    assertEquals(21, errors.length);
    assertEquals(OPTIONS.alphas(), scaling.alphas());
    int best = scaling.alphas().indexOf(scaling.alpha(0));
    assertEquals(DoubleStream.of(errors).min().orElseThrow(), errors[best]);
    assertTrue(errors[best] < 0.1 * errors[0], errors[best] + " after, " + errors[0] + " before");

    float[] keys = rotated(sample.keys(), 2, 0, 4);
    float[] queries = rotated(sample.queries(), 4, 0, 4);
    float[] ones = new float[2 * DIM];
    Arrays.fill(ones, 1);
    // Rotation in double and in the library differ by a rounding, which may move an element to the next code.
    double unscaled = error(sample, keys, queries, ones, 2);
    double scaled = error(sample, keys, queries, scaling.lambda(0), 2);
    assertEquals(unscaled, errors[0], 0.02 * unscaled);
    assertEquals(scaled, errors[best], 0.02 * scaled);

    float[] lambda = scaling.lambda(0);
    for (int head = 0; head < 2; head++) {
      for (int j = 0; j < DIM / 2; j++) {
        float most = 0;
        for (int t = 0; t < TOKENS; t++) {
          int at = (t * 2 + head) * DIM + j;
          most = Math.max(most, Math.max(Math.abs(keys[at]), Math.abs(keys[at + DIM / 2])));
        }
        double expected = Math.pow(most, scaling.alpha(0));
        assertEquals(expected, lambda[head * DIM + j], 1e-5 * expected);
        assertEquals(lambda[head * DIM + j], lambda[head * DIM + j + DIM / 2]);
      }
    }
  }

  @Test
  void keysAndQueriesFromAfterRopeGiveTheSame() {
    AttentionSample before = sample(Testing.random("keysAndQueriesFromAfterRopeGiveTheSame"));
    AttentionSample after =
        new AttentionSample(
            TOKENS,
            rotated(before.keys(), 2, 0, 1),
            true,
            before.values(),
            TOKENS,
            rotated(before.queries(), 4, 0, 1),
            true);
    KeyScaling expected = calibrate(OPTIONS, before.lastQueries(20));
    KeyScaling found = calibrate(OPTIONS, after.lastQueries(20));
    // Nearly the same: keys pass through one rounding more.
    for (int i = 0; i < expected.alphas().size(); i++) {
      assertEquals(expected.errors(0)[i], found.errors(0)[i], 0.05 * expected.errors(0)[i]);
    }
    for (int i = 0; i < 2 * DIM; i++) {
      double a = Math.log(expected.lambda(0)[i]) / expected.alpha(0);
      double b = Math.log(found.lambda(0)[i]) / found.alpha(0);
      assertEquals(a, b, 1e-4);
    }
  }

  @Test
  void stretchedPositionsServeFarOnes() {
    Random random = Testing.random("stretchedPositionsServeFarOnes");
    double near = 0;
    double stretched = 0;
    for (int i = 0; i < 4; i++) {
      AttentionSample sample = sample(random).lastQueries(32);
      float[] one = calibrate(OPTIONS.positionScale(1), sample).lambda(0);
      float[] four = calibrate(OPTIONS, sample).lambda(0);
      for (int first : new int[] {600, 900}) {
        float[] keys = rotated(sample.keys(), 2, first, 1);
        float[] queries = rotated(sample.queries(), 4, first + TOKENS - 32, 1);
        near += error(sample, keys, queries, one, 2);
        stretched += error(sample, keys, queries, four, 2);
      }
    }
    System.out.printf("error at far positions: s=1 %.5f, s=4 %.5f%n", near / 8, stretched / 8);
    assertTrue(stretched < 0.95 * near, stretched + " with s = 4, " + near + " with s = 1");
  }

  @Test
  void walksAllSamplesTwice() {
    Random random = Testing.random("walksAllSamplesTwice");
    AttentionSample a = sample(random).lastQueries(8);
    AttentionSample b = sample(random).lastQueries(8);
    int[] walks = new int[2];
    KeyScaling both =
        KeyScaling.calibrate(
            geometry(),
            OPTIONS,
            layer -> {
              Iterable<AttentionSample> list = List.of(a, b);
              return () -> {
                walks[layer]++;
                return list.iterator();
              };
            });
    assertArrayEquals(new int[] {2, 2}, walks);
    assertEquals(both, calibrate(OPTIONS, a, b));
    // The layers saw the same samples.
    assertArrayEquals(both.lambda(0), both.lambda(1));
    assertTrue(!both.equals(calibrate(OPTIONS, a)));
    assertNames(
        assertThrows(
            IllegalArgumentException.class, () -> KeyScaling.calibrate(geometry(), OPTIONS, layer -> List.of())),
        "layer 0");
  }

  @Test
  void foldsIntoWeights() {
    Random random = Testing.random("foldsIntoWeights");
    KeyScaling scaling = calibrate(OPTIONS, sample(random).lastQueries(8));
    int hidden = 24;
    float[] x = gaussian(random, hidden, 1);
    float[] y = gaussian(random, hidden, 1);
    float[] wq = gaussian(random, 4 * DIM * hidden, 0.2);
    float[] wk = gaussian(random, 2 * DIM * hidden, 0.2);
    float[] bq = gaussian(random, 4 * DIM, 0.2);
    float[] bk = gaussian(random, 2 * DIM, 0.2);
    double[] before = scores(x, y, wq, wk, bq, bk, hidden);
    float[] k = project(wk, bk, y, hidden);
    scaling.foldInto(0, hidden, wq, wk);
    scaling.foldInto(0, 1, bq, bk);
    double[] after = scores(x, y, wq, wk, bq, bk, hidden);
    assertArrayEquals(before, after, 1e-4);
    float[] folded = project(wk, bk, y, hidden);
    for (int i = 0; i < k.length; i++) {
      assertEquals(k[i] / scaling.lambda(0)[i], folded[i], 1e-5 * Math.max(1, Math.abs(k[i])));
    }
    assertThrows(IllegalArgumentException.class, () -> scaling.foldInto(0, hidden, wq, new float[7]));
    assertThrows(IllegalArgumentException.class, () -> scaling.foldInto(0, hidden, new float[7], wk));
    assertThrows(IllegalArgumentException.class, () -> scaling.foldInto(0, 0, wq, wk));
    assertThrows(IllegalArgumentException.class, () -> scaling.foldInto(2, hidden, wq, wk));
  }

  private static float[] project(float[] w, float[] bias, float[] x, int hidden) {
    float[] result = bias.clone();
    for (int i = 0; i < w.length; i++) {
      result[i / hidden] += w[i] * x[i % hidden];
    }
    return result;
  }

  /** Scores of the four query heads between x at position 5 and y at position 3. */
  private static double[] scores(float[] x, float[] y, float[] wq, float[] wk, float[] bq, float[] bk, int hidden) {
    float[] q = rotated(project(wq, bq, x, hidden), 4, 5, 0);
    float[] k = rotated(project(wk, bk, y, hidden), 2, 3, 0);
    double[] scores = new double[4];
    for (int i = 0; i < q.length; i++) {
      scores[i / DIM] += q[i] * k[i / DIM / 2 * DIM + i % DIM];
    }
    return scores;
  }

  @Test
  void refusesWhatMakesNoSense() {
    AttentionSample good = sample(new Random(1)).lastQueries(4);
    KeyScaling.Options d = KeyScaling.Options.of(ROPE);
    assertThrows(IllegalArgumentException.class, () -> d.bits(0));
    assertThrows(IllegalArgumentException.class, () -> d.positionScale(0));
    assertThrows(NullPointerException.class, () -> d.rope(null));
    assertThrows(
        IllegalArgumentException.class,
        () -> new KeyScaling.Options(ROPE, 4, 4, 0, List.of(0.5, 0.5)));
    assertThrows(
        IllegalArgumentException.class,
        () -> new KeyScaling.Options(ROPE, 4, 4, 0, List.of()));
    Rope wider = Rope.plain(RopePairs.HALVES, 10_000, 2 * DIM);
    assertNames(
        assertThrows(IllegalArgumentException.class, () -> calibrate(d.rope(wider), good)), "layer 0", DIM, 2 * DIM);
    assertThrows(IllegalArgumentException.class, () -> good.lastQueries(0));
    assertThrows(
        IllegalArgumentException.class,
        () -> new AttentionSample(2, good.keys(), false, good.values(), 3, good.queries(), false));
    AttentionSample shortOfValues =
        new AttentionSample(TOKENS, good.keys(), false, new float[5], 4, good.queries(), false);
    assertNames(
        assertThrows(IllegalArgumentException.class, () -> calibrate(d, shortOfValues)), "values", TOKENS * 2 * DIM);
    float[] nan = good.keys().clone();
    nan[77] = Float.NaN;
    AttentionSample broken = new AttentionSample(TOKENS, nan, false, good.values(), 4, good.queries(), false);
    assertThrows(NotFiniteException.class, () -> calibrate(d, broken));
    List<float[]> unequal = new ArrayList<>();
    for (int layer = 0; layer < 2; layer++) {
      float[] factors = new float[2 * DIM];
      Arrays.fill(factors, 2);
      unequal.add(factors);
    }
    KeyScaling.of(geometry(), RopePairs.NEIGHBOURS, unequal);
    unequal.get(1)[4] = 3;
    assertNames(
        assertThrows(
            IllegalArgumentException.class, () -> KeyScaling.of(geometry(), RopePairs.NEIGHBOURS, unequal)),
        "layer 1", "channels 4 and 5");
  }

  @Test
  void frequenciesOfOnesOwn() {
    AttentionSample sample = sample(Testing.random("frequenciesOfOnesOwn")).lastQueries(8);
    // Linear scaling by 4 undoes the stretching.
    assertEquals(
        calibrate(OPTIONS.positionScale(1), sample), calibrate(OPTIONS.rope(ROPE.linear(4)), sample));
    // Another base is another scaling.
    Rope llama = Rope.plain(RopePairs.HALVES, 500_000, DIM);
    assertTrue(!calibrate(OPTIONS, sample).equals(calibrate(OPTIONS.rope(llama), sample)));
  }
}
