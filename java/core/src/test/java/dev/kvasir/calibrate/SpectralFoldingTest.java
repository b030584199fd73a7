package dev.kvasir.calibrate;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.codebook.SpectralBases;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Weights with a basis in them: the model computes the same, and rows are coefficients. */
class SpectralFoldingTest {

  private static final int D = 32;
  private static final int HIDDEN = 24;
  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(4).kvHeads(2).headDim(D).build();

  private final Random random = new Random(11);
  private final float[] basis = basis();
  private final SpectralBases bases =
      SpectralBases.builder(GEOMETRY).basis(0, Side.KEYS, basis).basis(0, Side.VALUES, basis).build();

  private float[] basis() {
    float[] vectors = noise(2 * D * D, 0.05);
    for (int i = 0; i < vectors.length; i++) {
      vectors[i] += i / D % D == i % D ? 1 : 0;
    }
    return vectors;
  }

  private float[] noise(int size, double spread) {
    float[] all = new float[size];
    for (int i = 0; i < size; i++) {
      all[i] = (float) (spread * random.nextGaussian());
    }
    return all;
  }

  /** A projection, [rows][HIDDEN], of a state. */
  private static double[] project(float[] projection, float[] state) {
    double[] out = new double[projection.length / HIDDEN];
    for (int row = 0; row < out.length; row++) {
      for (int h = 0; h < HIDDEN; h++) {
        out[row] += (double) projection[row * HIDDEN + h] * state[h];
      }
    }
    return out;
  }

  /** What rows of coefficients of the kv heads stand for. */
  private double[] rows(double[] coefficients) {
    double[] rows = new double[coefficients.length];
    for (int i = 0; i < rows.length; i++) {
      for (int c = 0; c < D; c++) {
        rows[i] += coefficients[i / D * D + c] * basis[(i / D * D + c) * D + i % D];
      }
    }
    return rows;
  }

  @Test
  void valuesComeAsCoefficientsAndOutputsStay() {
    float[] values = noise(2 * D * HIDDEN, 1);
    float[] output = noise(HIDDEN * 4 * D, 1);
    float[] state = noise(HIDDEN, 1);
    float[] folded = values.clone();
    float[] foldedOutput = output.clone();
    new SpectralFolding(bases).foldValues(0, folded, foldedOutput, HIDDEN);
    double[] before = project(values, state);
    double[] after = project(folded, state);
    // Float32 weights, twenty-four products each.
    assertArrayEquals(before, rows(after), 1e-4);
    for (int row = 0; row < HIDDEN; row++) {
      double expected = 0;
      double found = 0;
      for (int head = 0; head < 4; head++) {
        for (int c = 0; c < D; c++) {
          expected += output[(row * 4 + head) * D + c] * before[head / 2 * D + c];
          found += foldedOutput[(row * 4 + head) * D + c] * after[head / 2 * D + c];
        }
      }
      assertEquals(expected, found, 1e-3);
    }
  }

  @Test
  void keysComeAsCoefficientsAndScoresStay() {
    float[] queries = noise(4 * D * HIDDEN, 1);
    float[] keys = noise(2 * D * HIDDEN, 1);
    float[] state = noise(HIDDEN, 1);
    float[] foldedQueries = queries.clone();
    float[] folded = keys.clone();
    new SpectralFolding(bases).foldKeys(0, foldedQueries, folded, HIDDEN);
    double[] before = project(keys, state);
    double[] after = project(folded, state);
    assertArrayEquals(before, rows(after), 1e-4);
    double[] asked = project(queries, state);
    double[] askedAfter = project(foldedQueries, state);
    for (int head = 0; head < 4; head++) {
      double expected = 0;
      double found = 0;
      for (int c = 0; c < D; c++) {
        expected += asked[head * D + c] * before[head / 2 * D + c];
        found += askedAfter[head * D + c] * after[head / 2 * D + c];
      }
      assertEquals(expected, found, 1e-3);
    }
  }

  @Test
  void whatIsFoldedIsNoLongerTheCachesAffair() {
    SpectralBases rest = bases.without(Side.VALUES);
    assertTrue(rest.forCache(0, Side.VALUES).isEmpty());
    assertTrue(rest.forCache(0, Side.KEYS).isPresent());
    assertArrayEquals(basis, rest.basis(0, Side.KEYS).orElseThrow());
    float[] values = noise(2 * D * HIDDEN, 1);
    float[] output = noise(HIDDEN * 4 * D, 1);
    float[] same = values.clone();
    new SpectralFolding(rest).foldValues(0, same, output, HIDDEN);
    assertArrayEquals(values, same);
  }

  @Test
  void whatDoesNotFitIsRefusedAndStays() {
    SpectralBases flat = SpectralBases.builder(GEOMETRY).basis(0, Side.VALUES, new float[2 * D * D]).build();
    float[] values = noise(2 * D * HIDDEN, 1);
    float[] output = noise(HIDDEN * 4 * D, 1);
    float[] same = values.clone();
    assertThrows(
        IllegalArgumentException.class, () -> new SpectralFolding(flat).foldValues(0, same, output, HIDDEN));
    assertThrows(
        IllegalArgumentException.class, () -> new SpectralFolding(bases).foldValues(0, same, new float[3], HIDDEN));
    assertThrows(
        IllegalArgumentException.class, () -> new SpectralFolding(bases).foldKeys(1, output, same, HIDDEN));
    assertArrayEquals(values, same);
  }
}
