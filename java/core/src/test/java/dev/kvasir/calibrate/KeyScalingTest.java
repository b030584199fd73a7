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
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.stream.DoubleStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class KeyScalingTest {

  @TempDir Path folder;

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
    NotFiniteException refused = assertThrows(NotFiniteException.class, () -> calibrate(d, broken));
    assertNames(refused, "layer 0", "keys hold NaN");
    assertEquals(0, refused.layer());
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

  private static float[] turned(Rope rope, float[] rows, int heads) {
    float[] turned = rows.clone();
    rope.rotate(turned, TOKENS, heads, 0);
    for (int i = 0; i < turned.length; i++) {
      turned[i] *= (float) rope.attentionFactor();
    }
    return turned;
  }

  @Test
  void yarnMultipliesWhatIsFromBeforeRope() {
    Rope yarn = ROPE.yarn(40, 32, 1, 4096);
    AttentionSample before = sample(Testing.random("yarnMultipliesWhatIsFromBeforeRope"));
    float[] keys = turned(yarn, before.keys(), 2);
    float[] queries = turned(yarn, before.queries(), 4);
    KeyScaling.Options options = OPTIONS.rope(yarn).positionScale(1);
    KeyScaling expected =
        calibrate(options, new AttentionSample(TOKENS, keys, true, before.values(), TOKENS, queries, true));
    for (boolean keysRotated : new boolean[] {false, true}) {
      for (boolean queriesRotated : new boolean[] {false, true}) {
        KeyScaling found =
            calibrate(
                options,
                new AttentionSample(
                    TOKENS,
                    keysRotated ? keys : before.keys(),
                    keysRotated,
                    before.values(),
                    TOKENS,
                    queriesRotated ? queries : before.queries(),
                    queriesRotated));
        assertEquals(expected.alpha(0), found.alpha(0));
        for (int i = 0; i < expected.alphas().size(); i++) {
          assertEquals(expected.errors(0)[i], found.errors(0)[i], 1e-3 * expected.errors(0)[i]);
        }
        for (int i = 0; i < 2 * DIM; i++) {
          assertEquals(expected.lambda(0)[i], found.lambda(0)[i], 1e-5 * expected.lambda(0)[i]);
        }
      }
    }
  }

  @Test
  void filesGiveKeysAndQueriesFromTheSameSideOfRope() throws IOException {
    KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(4).kvHeads(2).headDim(DIM).build();
    Random random = Testing.random("filesGiveKeysAndQueriesFromTheSameSideOfRope");
    for (boolean queriesToo : new boolean[] {false, true}) {
      Map<String, Tensor> tensors = new TreeMap<>();
      for (String name : queriesToo ? List.of("k", "v", "k_pre", "q", "q_pre") : List.of("k", "v", "k_pre", "q")) {
        int heads = name.startsWith("q") ? 4 : 2;
        tensors.put("layers.0." + name, Tensor.ofFloats(gaussian(random, 3 * heads * DIM, 1), 3, heads, DIM));
      }
      Path file = folder.resolve("tensors" + queriesToo);
      Safetensors.write(file, Map.of(), tensors);
      try (CalibrationTensors text =
          CalibrationTensors.open(geometry, CalibrationTensors.Layout.TOKENS_FIRST, file)) {
        AttentionSample sample = text.sample(0);
        assertEquals(!queriesToo, sample.keysRotated());
        assertEquals(!queriesToo, sample.queriesRotated());
        assertArrayEquals(tensors.get("layers.0." + (queriesToo ? "k_pre" : "k")).toFloats(), sample.keys());
        assertArrayEquals(tensors.get("layers.0." + (queriesToo ? "q_pre" : "q")).toFloats(), sample.queries());
      }
    }
  }

  @Test
  void filesOfOneSideOfRopeEachAreSamplesToo() throws IOException {
    KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(4).kvHeads(2).headDim(DIM).build();
    Random random = Testing.random("filesOfOneSideOfRopeEachAreSamplesToo");
    for (boolean keysRotated : new boolean[] {false, true}) {
      String k = keysRotated ? "k" : "k_pre";
      String q = keysRotated ? "q_pre" : "q";
      Map<String, Tensor> tensors = new TreeMap<>();
      for (String name : List.of(k, "v", q)) {
        int heads = name.startsWith("q") ? 4 : 2;
        tensors.put("layers.0." + name, Tensor.ofFloats(gaussian(random, 3 * heads * DIM, 1), 3, heads, DIM));
      }
      Path file = folder.resolve("tensors" + keysRotated);
      Safetensors.write(file, Map.of(), tensors);
      try (CalibrationTensors text =
          CalibrationTensors.open(geometry, CalibrationTensors.Layout.TOKENS_FIRST, file)) {
        AttentionSample sample = text.sample(0);
        assertEquals(keysRotated, sample.keysRotated());
        assertEquals(!keysRotated, sample.queriesRotated());
        assertArrayEquals(tensors.get("layers.0." + k).toFloats(), sample.keys());
        assertArrayEquals(tensors.get("layers.0." + q).toFloats(), sample.queries());
      }
    }
  }

  @Test
  void refusesWhatNoCacheTakesAndWhatFloatsDoNotHold() {
    AttentionSample good = sample(Testing.random("refusesWhatNoCacheTakesAndWhatFloatsDoNotHold")).lastQueries(4);
    float[] values = good.values().clone();
    values[2 * DIM + 5] = 32768;
    AttentionSample large = new AttentionSample(TOKENS, good.keys(), false, values, 4, good.queries(), false);
    NotFiniteException refused = assertThrows(NotFiniteException.class, () -> calibrate(OPTIONS, large));
    assertNames(refused, "layer 0", "values", "token 1", "head 0", "channel 5");
    assertEquals("values", refused.input());
    assertEquals(0, refused.layer());
    assertEquals(1, refused.token());
    assertEquals(32768, refused.value());
    float[] queries = good.queries().clone();
    Arrays.fill(queries, 1e38f);
    AttentionSample huge = new AttentionSample(TOKENS, good.keys(), true, good.values(), 4, queries, true);
    assertThrows(NotFiniteException.class, () -> calibrate(OPTIONS.positionScale(1), huge));
  }

  @Test
  void queriesEndWithTheLastOne() {
    AttentionSample good = sample(Testing.random("queriesEndWithTheLastOne")).lastQueries(8);
    calibrate(OPTIONS, good.lastQueries(3));
    // Which rows are the last ones is not known where there are more than tokens, or parts of rows.
    for (int elements : new int[] {9 * 4 * DIM, 16 * 4 * DIM, 8 * 4 * DIM + 8}) {
      float[] longer = Arrays.copyOf(good.queries(), elements);
      AttentionSample sample = new AttentionSample(TOKENS, good.keys(), false, good.values(), 8, longer, false);
      assertNames(
          assertThrows(IllegalArgumentException.class, () -> calibrate(OPTIONS, sample.lastQueries(3))),
          "layer 0: queries",
          3 * 4 * DIM);
      assertNames(
          assertThrows(IllegalArgumentException.class, () -> calibrate(OPTIONS, sample)), elements, 8 * 4 * DIM);
    }
    AttentionSample part =
        new AttentionSample(
            TOKENS, good.keys(), false, good.values(), 8, Arrays.copyOf(good.queries(), 8 * 4 * DIM + 5), false);
    assertNames(assertThrows(IllegalArgumentException.class, () -> part.lastQueries(3)), 8 * 4 * DIM + 5, "8 tokens");
  }

  @Test
  void layersWithoutKeysOfTheirOwnHaveThoseOfTheirSource() {
    KvGeometry shared =
        KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(DIM).source(0, 1).source(2, 1).build();
    AttentionSample sample = sample(Testing.random("layersWithoutKeysOfTheirOwn")).lastQueries(8);
    KeyScaling scaling =
        KeyScaling.calibrate(shared, OPTIONS, layer -> layer == 1 ? List.of(sample) : List.of());
    assertEquals(3, scaling.layers());
    for (int layer : new int[] {0, 2}) {
      assertArrayEquals(scaling.lambda(1), scaling.lambda(layer));
      assertEquals(scaling.alpha(1), scaling.alpha(layer));
    }
    assertArrayEquals(calibrate(OPTIONS, sample).lambda(0), scaling.lambda(1));
  }
}
