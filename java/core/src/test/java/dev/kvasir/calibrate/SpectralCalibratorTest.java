package dev.kvasir.calibrate;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.calibrate.SpectralLosses.Temper;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.method.Spectral;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Bases in which errors cost alike and channels are uncorrelated, plans by losses, and their file. */
class SpectralCalibratorTest {

  private static final int D = 32;
  private static final int TOKENS = 128 * 24;
  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(2).kvHeads(1).headDim(D).build();

  private final Random random = new Random(5);

  /** Rows of one length whose channels are mixed, of uneven spread: x = z M. */
  private float[] mixed(float[] mixture, int rows) {
    float[] all = new float[rows * D];
    for (int row = 0; row < rows; row++) {
      for (int i = 0; i < D; i++) {
        float z = (float) (random.nextGaussian() * Math.pow(2, -i / 8.0));
        for (int c = 0; c < D; c++) {
          all[row * D + c] += z * mixture[i * D + c];
        }
      }
    }
    return all;
  }

  private float[] mixture() {
    float[] mixture = new float[D * D];
    for (int i = 0; i < mixture.length; i++) {
      mixture[i] = (float) (random.nextGaussian() / Math.sqrt(D));
    }
    return mixture;
  }

  /** A mixture that no direction gets lost in: none is so small that the calibrator takes it for larger than it is. */
  private float[] gentleMixture() {
    float[] mixture = mixture();
    for (int i = 0; i < mixture.length; i++) {
      mixture[i] = 0.3f * mixture[i] + (i % D == i / D ? 1 : 0);
    }
    return mixture;
  }

  private SpectralBases calibrate(float[] keys, float[] queries, float[] values, float[] projection) {
    SpectralCalibrator calibrator = new SpectralCalibrator(GEOMETRY);
    calibrator.addQueries(0, queries, queries.length / (2 * D));
    for (int half = 0; half < 2; half++) { // as two texts
      int size = keys.length / 2;
      calibrator.addRows(0, Side.KEYS, Arrays.copyOfRange(keys, half * size, (half + 1) * size), TOKENS / 2);
      calibrator.addRows(0, Side.VALUES, Arrays.copyOfRange(values, half * size, (half + 1) * size), TOKENS / 2);
    }
    calibrator.outputProjection(0, projection, projection.length / (2 * D));
    return calibrator.bases();
  }

  /** V S V' of a basis and second moments of rows. */
  private static double[][] seenBy(float[] vectors, float[] rows) {
    double[][] seen = new double[D][D];
    double[] products = new double[D];
    for (int row = 0; row < rows.length / D; row++) {
      for (int i = 0; i < D; i++) {
        products[i] = 0;
        for (int c = 0; c < D; c++) {
          products[i] += (double) vectors[i * D + c] * rows[row * D + c];
        }
      }
      for (int i = 0; i < D; i++) {
        for (int j = 0; j < D; j++) {
          seen[i][j] += products[i] * products[j];
        }
      }
    }
    return seen;
  }

  @Test
  void refusesWhatIsNoNumberBeforeAddingAnything() {
    float[] rows = mixed(mixture(), TOKENS);
    float[] queries = mixed(mixture(), 2 * TOKENS);
    float[] projection = mixed(mixture(), 128);
    SpectralCalibrator calibrator = new SpectralCalibrator(GEOMETRY);
    SpectralCalibrator untouched = new SpectralCalibrator(GEOMETRY);
    for (SpectralCalibrator each : List.of(calibrator, untouched)) {
      each.addQueries(0, queries, TOKENS);
      each.addRows(0, Side.KEYS, rows, TOKENS);
      each.addRows(0, Side.VALUES, rows, TOKENS);
      each.outputProjection(0, projection, 64);
    }
    for (float bad : new float[] {Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY}) {
      float[] some = rows.clone();
      some[130 * D + 7] = bad;
      for (Side side : Side.values()) {
        NotFiniteException refused =
            assertThrows(NotFiniteException.class, () -> calibrator.addRows(0, side, some, TOKENS));
        assertEquals(side == Side.KEYS ? "keys" : "values", refused.input());
        assertEquals(0, refused.layer());
        assertEquals(130, refused.token());
        assertEquals(0, refused.head());
        assertEquals(7, refused.channel());
        assertEquals(bad, refused.value());
      }
      float[] others = queries.clone();
      others[(130 * 2 + 1) * D + 7] = bad;
      NotFiniteException refused =
          assertThrows(NotFiniteException.class, () -> calibrator.addQueries(0, others, TOKENS));
      assertEquals("queries", refused.input());
      assertEquals(1, refused.head());
      float[] weights = projection.clone();
      weights[3 * 2 * D + 5] = bad;
      assertNames(
          assertThrows(NotFiniteException.class, () -> calibrator.outputProjection(0, weights, 64)),
          "row 3",
          "column 5");
    }
    Map<String, Tensor> expected = untouched.bases().tensors();
    Map<String, Tensor> found = calibrator.bases().tensors();
    for (String name : expected.keySet()) {
      assertArrayEquals(expected.get(name).toFloats(), found.get(name).toFloats(), name);
    }
  }

  /** Errors of rows that several layers have cost in all of them; the rows themselves are counted once. */
  @Test
  void layersThatTakeRowsCountWhereTheseAre() {
    KvGeometry shared = KvGeometry.builder().layers(2).queryHeads(2).kvHeads(1).headDim(D).source(1, 0).build();
    float[] rows = mixed(mixture(), TOKENS);
    float[] others = mixed(mixture(), TOKENS);
    float[] queries = mixed(gentleMixture(), 2 * TOKENS);
    float[] projection = mixed(gentleMixture(), 128);
    SpectralCalibrator alone = new SpectralCalibrator(GEOMETRY);
    SpectralCalibrator sharing = new SpectralCalibrator(shared);
    alone.addQueries(0, queries, TOKENS);
    sharing.addQueries(1, queries, TOKENS);
    alone.outputProjection(0, projection, 64);
    sharing.outputProjection(1, projection, 64);
    for (Side side : Side.values()) {
      alone.addRows(0, side, rows, TOKENS);
      sharing.addRows(0, side, rows, TOKENS);
      sharing.addRows(1, side, others, TOKENS);
    }
    Map<String, Tensor> expected = alone.bases().tensors();
    for (int both = 0; both < 2; both++) {
      Map<String, Tensor> found = sharing.bases().tensors();
      assertEquals(expected.keySet(), found.keySet());
      for (String name : expected.keySet()) {
        assertArrayEquals(expected.get(name).toFloats(), found.get(name).toFloats(), name);
      }
      // Those of the source as well: the same again, so that all errors cost twice as much.
      sharing.addQueries(0, queries, TOKENS);
      sharing.outputProjection(0, projection, 64);
    }
  }

  @Test
  void errorsCostAlikeInTheBasis() {
    float[] queries = mixed(gentleMixture(), TOKENS);
    float[] projection = mixed(gentleMixture(), 128);
    float[] keys = mixed(mixture(), TOKENS);
    float[] values = mixed(mixture(), TOKENS);
    SpectralBases bases = calibrate(keys, queries, values, projection);
    // An error of one coefficient is that times its vector; what queries, or the projection, make of it is the metric.
    for (Side side : Side.values()) {
      float[] vectors = bases.tensors().get("spectral.0." + (side == Side.KEYS ? "keys" : "values")).toFloats();
      double[][] cost = seenBy(vectors, side == Side.KEYS ? queries : projection);
      for (int i = 0; i < D; i++) {
        for (int j = 0; j < D; j++) {
          assertEquals(i == j ? 1 : 0, cost[i][j] / cost[0][0], 2e-3, side + " " + i + ", " + j);
        }
      }
    }
  }

  @Test
  void channelsAreUncorrelatedAndInTheOrderOfTheirSpread() {
    float[] keys = mixed(mixture(), TOKENS);
    SpectralBases bases = calibrate(keys, mixed(mixture(), TOKENS), keys, mixed(mixture(), 128));
    float[] vectors = bases.tensors().get("spectral.0.keys").toFloats();
    double[][] inverse = inverse(vectors);
    double[][] covariance = new double[D][D];
    for (int page = 0; page < TOKENS / 128; page++) {
      double[][] y = new double[128][D];
      double[] mean = new double[D];
      for (int t = 0; t < 128; t++) {
        double squares = 0;
        for (int c = 0; c < D; c++) {
          squares += Math.pow(keys[(page * 128 + t) * D + c], 2);
        }
        for (int i = 0; i < D; i++) {
          for (int c = 0; c < D; c++) {
            y[t][i] += keys[(page * 128 + t) * D + c] / Math.sqrt(squares / D) * inverse[c][i];
          }
          mean[i] += y[t][i] / 128;
        }
      }
      for (double[] row : y) {
        for (int i = 0; i < D; i++) {
          for (int j = 0; j < D; j++) {
            covariance[i][j] += (row[i] - mean[i]) * (row[j] - mean[j]);
          }
        }
      }
    }
    for (int i = 0; i < D; i++) {
      assertTrue(i == 0 || covariance[i][i] <= covariance[i - 1][i - 1] * 1.0001, "channel " + i);
      for (int j = 0; j < i; j++) {
        double correlation = covariance[i][j] / Math.sqrt(covariance[i][i] * covariance[j][j]);
        assertEquals(0, correlation, 2e-3, i + ", " + j);
      }
    }
  }

  /** By Gauss and Jordan. */
  private static double[][] inverse(float[] matrix) {
    double[][] rows = new double[D][2 * D];
    for (int i = 0; i < D; i++) {
      for (int c = 0; c < D; c++) {
        rows[i][c] = matrix[i * D + c];
      }
      rows[i][D + i] = 1;
    }
    for (int c = 0; c < D; c++) {
      int pivot = c;
      for (int i = c + 1; i < D; i++) {
        pivot = Math.abs(rows[i][c]) > Math.abs(rows[pivot][c]) ? i : pivot;
      }
      double[] swap = rows[c];
      rows[c] = rows[pivot];
      rows[pivot] = swap;
      for (int j = 2 * D - 1; j >= 0; j--) {
        rows[c][j] /= rows[c][c];
      }
      for (int i = 0; i < D; i++) {
        double factor = rows[i][c];
        for (int j = 0; i != c && j < 2 * D; j++) {
          rows[i][j] -= factor * rows[c][j];
        }
      }
    }
    double[][] right = new double[D][];
    for (int i = 0; i < D; i++) {
      right[i] = Arrays.copyOfRange(rows[i], D, 2 * D);
    }
    return right;
  }

  @Test
  void aCalibratedBasisMovesAttentionLess() {
    float[] mixture = mixture();
    float[] queryMixture = mixture();
    float[] keys = mixed(mixture, TOKENS);
    float[] queries = mixed(queryMixture, TOKENS);
    SpectralBases bases = calibrate(keys, queries, keys, mixed(mixture(), 128));
    float[] fresh = mixed(mixture, 256);
    float[] asked = mixed(queryMixture, 64);
    double with = scoreError(bases, fresh, asked);
    double without = scoreError(SpectralBases.builder(GEOMETRY).build(), fresh, asked);
    assertTrue(with < 0.4 * without, with + " with a basis, " + without + " without");
  }

  private static double scoreError(SpectralBases bases, float[] rows, float[] queries) {
    try (KvCache cache = KvCache.builder(GEOMETRY).method(Spectral.of(bases, 1.5).sinks(0)).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, 256);
      float[] read = sequence.read(0, Side.KEYS, 0, 256);
      double error = 0;
      for (int q = 0; q < queries.length / D; q++) {
        for (int t = 0; t < 256; t++) {
          double off = 0;
          for (int c = 0; c < D; c++) {
            off += (double) queries[q * D + c] * (read[t * D + c] - rows[t * D + c]);
          }
          error += off * off;
        }
      }
      return error;
    }
  }

  @Test
  void plansFollowLosses() {
    KvGeometry geometry = KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(64).build();
    SpectralBases bases = SpectralBases.builder(geometry).build();
    SpectralLosses losses = SpectralLosses.of(geometry, List.of(1e-2, 1e-3, 1e-3), List.of(1e-3, 1e-3, 1e-3 / 16));
    Spectral plan = losses.plan(bases, 2);
    // Four times the loss is a bit more; what is left over goes somewhere.
    assertEquals(0.5 * Math.log(10) / Math.log(2), plan.keyBits().get(0) - plan.keyBits().get(1), 0.26);
    assertEquals(2, plan.valueBits().get(1) - plan.valueBits().get(2), 0.26);
    assertEquals(2, mean(plan), 0.05);
    assertTrue(mean(plan) <= 2);
    assertEquals(16, plan.sinks());
    Spectral flat = losses.temper(0).plan(bases, 2);
    assertEquals(Collections.nCopies(3, 2.0), flat.keyBits());
    assertEquals(Collections.nCopies(3, 2.0), flat.valueBits());
    assertEquals(flat, SpectralLosses.equal(geometry).plan(bases, 2));
    assertThrows(IllegalArgumentException.class, () -> losses.plan(bases, 0));
    assertThrows(IllegalArgumentException.class, () -> losses.plan(bases, 0.1));
    assertThrows(IllegalArgumentException.class, () -> losses.temper(2.1));
    assertThrows(
        IllegalArgumentException.class, () -> SpectralLosses.of(geometry, List.of(1.0), List.of(1.0)));
    assertThrows(
        IllegalArgumentException.class,
        () -> SpectralLosses.of(geometry, List.of(1.0, 0.0, 1.0), Collections.nCopies(3, 1.0)));
  }

  @Test
  void plansOfSomeBitsHaveATemperOfTheirOwn() {
    KvGeometry geometry = KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(64).build();
    SpectralBases bases = SpectralBases.builder(geometry).build();
    SpectralLosses word = SpectralLosses.of(geometry, List.of(1e-2, 1e-3), List.of(1e-3, 1e-4));
    SpectralLosses losses = word.tempers(List.of(new Temper(1, 0), new Temper(2, 1), new Temper(4, 0.5)));
    assertEquals(0, losses.power(0.5));
    assertEquals(0, losses.power(1));
    assertEquals(0.25, losses.power(1.25), 1e-12);
    assertEquals(1, losses.power(2));
    assertEquals(0.75, losses.power(3), 1e-12);
    assertEquals(0.5, losses.power(8));
    assertEquals(word.temper(0).plan(bases, 1), losses.plan(bases, 1));
    assertEquals(word.plan(bases, 2), losses.plan(bases, 2));
    assertEquals(word.temper(0.75).plan(bases, 3), losses.plan(bases, 3));
    assertEquals(losses, SpectralLosses.of(geometry, losses.tensors()).orElseThrow());
    // Profiles had one power for all bits.
    Map<String, Tensor> older = new HashMap<>(word.tensors());
    older.put("spectral.temper", Tensor.ofDoubles(new double[] {0.25}, 1));
    assertEquals(word.temper(0.25), SpectralLosses.of(geometry, older).orElseThrow());
    older.put("spectral.temper", Tensor.ofDoubles(new double[] {1, 0.25, 2}, 3));
    assertThrows(IllegalArgumentException.class, () -> SpectralLosses.of(geometry, older));
    assertThrows(IllegalArgumentException.class, () -> word.tempers(List.of()));
    assertThrows(
        IllegalArgumentException.class, () -> word.tempers(List.of(new Temper(2, 1), new Temper(2, 0))));
    assertThrows(IllegalArgumentException.class, () -> new Temper(0, 1));
  }

  @Test
  void errorsFallFasterWhereFewChannelsHaveBits() {
    KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(1).kvHeads(1).headDim(D).build();
    float[] variances = new float[D];
    Arrays.fill(variances, 0, D / 2, 16);
    Arrays.fill(variances, D / 2, D, 1);
    SpectralBases bases = SpectralBases.builder(geometry).variances(0, Side.KEYS, variances).build();
    // By hand: half of the channels spread four times as far as the others, and have two bits more.
    assertEquals(0.25 * D, bases.distortion(0, Side.KEYS, 2), 1e-6);
    assertEquals(1.0 * D, bases.distortion(0, Side.KEYS, 1), 1e-6);
    assertEquals(2.5 * D, bases.distortion(0, Side.KEYS, 0.5), 1e-6);
    assertEquals(8.5 * D, bases.distortion(0, Side.KEYS, 0), 1e-6);
    assertEquals(Math.pow(4, -1.5), bases.distortion(0, Side.VALUES, 1.5), 1e-12);
    // Values whose errors fall fourfold a bit can do with less than keys whose errors grow faster below two bits.
    SpectralLosses losses = SpectralLosses.of(geometry, List.of(1e-3), List.of(1e-3));
    Spectral plan = losses.plan(bases, 0.5);
    assertTrue(plan.keyBits().get(0) > plan.valueBits().get(0), plan.name());
    assertEquals(List.of(0.5), losses.temper(0).plan(bases, 0.5).keyBits());
    assertThrows(
        IllegalArgumentException.class,
        () -> SpectralBases.builder(geometry).variances(0, Side.KEYS, new float[D - 1]));
  }

  private static double mean(Spectral method) {
    return (method.keyBits().stream().mapToDouble(x -> x).sum() + method.valueBits().stream().mapToDouble(x -> x).sum())
        / (2 * method.keyBits().size());
  }

  @Test
  void profilesKeepThem(@TempDir Path folder) throws IOException {
    float[] rows = mixed(mixture(), TOKENS);
    SpectralBases bases = calibrate(rows, mixed(mixture(), TOKENS), rows, mixed(mixture(), 128));
    SpectralLosses losses = SpectralLosses.of(GEOMETRY, List.of(4e-3), List.of(1e-3)).temper(0.5);
    Path file = folder.resolve("spectral.profile");
    Profile.builder(GEOMETRY).spectral(bases, losses).build().save(file);
    Profile loaded = Profile.load(file, GEOMETRY);
    assertEquals(bases.tensors(), loaded.bases().tensors());
    Spectral direct = losses.plan(bases, 1.75);
    Spectral read = loaded.spectral(1.75);
    assertEquals(direct.keyBits(), read.keyBits());
    assertEquals(direct.valueBits(), read.valueBits());
    assertThrows(ProfileException.class, () -> Profile.builder(GEOMETRY).build().spectral(2));
    assertThrows(IllegalArgumentException.class, () -> loaded.spectral(9));
    KvGeometry other = KvGeometry.builder().layers(1).queryHeads(2).kvHeads(1).headDim(64).build();
    assertThrows(IllegalArgumentException.class, () -> SpectralBases.of(other, bases.tensors()));
  }

  @Test
  void whatWasNotShownIsMissed() {
    SpectralCalibrator calibrator = new SpectralCalibrator(GEOMETRY);
    assertThrows(IllegalStateException.class, calibrator::bases);
    assertThrows(IllegalArgumentException.class, () -> calibrator.addQueries(0, new float[D], 1));
    assertThrows(IllegalArgumentException.class, () -> calibrator.addRows(1, Side.KEYS, new float[D], 1));
    assertThrows(IllegalArgumentException.class, () -> calibrator.outputProjection(0, new float[D], 1));
    SpectralBases.Builder builder = SpectralBases.builder(GEOMETRY);
    assertThrows(IllegalArgumentException.class, () -> builder.basis(0, Side.KEYS, new float[D]));
    assertThrows(IllegalArgumentException.class, () -> builder.basis(1, Side.KEYS, new float[D * D]));
    // What does not span the space shows when a cache is built.
    SpectralBases flat = SpectralBases.builder(GEOMETRY).basis(0, Side.KEYS, new float[D * D]).build();
    IllegalArgumentException e =
        assertThrows(
            IllegalArgumentException.class,
            () -> KvCache.builder(GEOMETRY).method(Spectral.of(flat, 2)).build());
    assertTrue(String.valueOf(e.getMessage()).contains("span"), e.getMessage());
    assertThrows(IllegalArgumentException.class, () -> Spectral.of(SpectralBases.builder(GEOMETRY).build(), 9));
  }

  /** Under a budget pages give up bits, no more than to the floor, and what stands beyond it is refused. */
  @Test
  void pagesGiveUpBitsUnderABudget() {
    float[] rows = mixed(mixture(), TOKENS);
    SpectralBases bases = calibrate(rows, mixed(mixture(), TOKENS), rows, mixed(gentleMixture(), 64));
    Spectral wide = Spectral.of(bases, 4).bits(List.of(5.0), List.of(3.0));
    assertThrows(IllegalArgumentException.class, () -> wide.floor(4.5));
    assertThrows(IllegalArgumentException.class, () -> wide.floor(-1));
    Spectral method = wide.floor(1.5);
    assertEquals("spectral-k5.00v3.00-to1.50", method.name());
    long budget;
    try (KvCache cache = KvCache.builder(GEOMETRY).method(wide).build(); KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, TOKENS);
      budget = cache.stats().bytes() * 2 / 3;
    }
    try (KvCache cache = KvCache.builder(GEOMETRY).method(method).budgetBytes(budget).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, TOKENS);
      assertTrue(cache.stats().bytes() <= budget && cache.stats().bytes() > budget * 0.95);
      double keys = cache.stats().layers().get(0).keyBits();
      double values = cache.stats().layers().get(0).valueBits();
      assertEquals(2, keys - values, 0.3); // as much less on both sides
      assertTrue(keys < 4 && values > 0.5, keys + ", " + values);
      long length = sequence.length();
      assertThrows(
          BudgetExceededException.class,
          () -> {
            for (;;) {
              sequence.append(0, rows, rows, TOKENS);
            }
          });
      assertTrue(sequence.length() >= length);
    }
  }
}
