package dev.kvasir;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("jnicheck")
class KMeansTest {

  private static final int DIM = 32;

  /** Points around eight corners that are ten deviations and more apart. */
  private static float[] points(int count) {
    Random random = new Random(3);
    float[] points = new float[count * DIM];
    for (int i = 0; i < points.length; i++) {
      points[i] = (i / DIM % 8 >> i % DIM % 3 & 1) * 10 + (float) random.nextGaussian();
    }
    return points;
  }

  @Test
  void findsGroupsThatAreFarApart() {
    float[] points = points(800);
    KMeans.Result result = KMeans.cluster(points, DIM, 8, 30, 1);
    assertEquals(8 * DIM, result.centres().length);
    assertEquals(800, result.labels().length);
    Set<Integer> seen = new HashSet<>();
    double objective = 0;
    for (int i = 0; i < 800; i++) {
      assertEquals(result.labels()[i % 8], result.labels()[i], "points of one corner have one label");
      seen.add(result.labels()[i]);
      for (int c = 0; c < DIM; c++) {
        objective += Math.pow(points[i * DIM + c] - result.centres()[result.labels()[i] * DIM + c], 2);
      }
    }
    assertEquals(8, seen.size());
    assertEquals(objective, result.objective(), 1e-4 * objective);
    // N - k squares of unit normals in each channel: deviation sqrt(2 N).
    double expected = (800.0 - 8) * DIM;
    assertEquals(expected, result.objective(), 5 * Math.sqrt(2 * expected));
  }

  @Test
  void theSeedDecidesAndThreadsDoNot() {
    float[] points = Testing.gaussian(new Random(5), 3000 * DIM);
    KMeans.Result once = KMeans.cluster(points, DIM, 32, 10, 7);
    int threads = Kvasir.threads();
    try {
      for (int count : new int[] {1, 3}) {
        Kvasir.setThreads(count);
        KMeans.Result again = KMeans.cluster(points, DIM, 32, 10, 7);
        assertArrayEquals(once.centres(), again.centres());
        assertArrayEquals(once.labels(), again.labels());
        assertEquals(once.objective(), again.objective());
      }
    } finally {
      Kvasir.setThreads(threads);
    }
    KMeans.Result other = KMeans.cluster(points, DIM, 32, 10, 8);
    assertTrue(!Arrays.equals(once.centres(), other.centres()), "another seed, another result");
  }

  @Test
  void fewerPointsThanClusters() {
    float[] points = points(3);
    KMeans.Result result = KMeans.cluster(points, DIM, 64, 30, 1);
    assertEquals(points.length, result.centres().length);
    assertEquals(0, result.objective());
    for (int i = 0; i < 3; i++) {
      int label = result.labels()[i];
      assertArrayEquals(
          Arrays.copyOfRange(points, i * DIM, (i + 1) * DIM),
          Arrays.copyOfRange(result.centres(), label * DIM, (label + 1) * DIM));
    }
  }

  @Test
  void wrongArgumentsAreNamed() {
    float[] points = points(10);
    for (int dim : new int[] {0, -16, 8, 24, 33, 1040, Integer.MAX_VALUE, Integer.MIN_VALUE}) {
      assertRefused(points, dim, 4, 5, "dim", dim);
    }
    for (int clusters : new int[] {0, -1, 65537, Integer.MAX_VALUE}) {
      assertRefused(points, DIM, clusters, 5, "clusters", clusters);
    }
    for (int steps : new int[] {-1, 1_000_001, Integer.MAX_VALUE}) {
      assertRefused(points, DIM, 4, steps, "maxSteps", steps);
    }
    assertRefused(new float[0], DIM, 4, 5, "points", 0);
    assertRefused(new float[DIM + 1], DIM, 4, 5, "points", DIM + 1);
    assertThrows(NullPointerException.class, () -> KMeans.cluster(null, DIM, 4, 5, 1));
    for (float bad : new float[] {Float.NaN, Float.POSITIVE_INFINITY, 2e15f, -Float.MAX_VALUE}) {
      float[] spoilt = points.clone();
      spoilt[5 * DIM] = bad;
      assertThrows(NotFiniteException.class, () -> KMeans.cluster(spoilt, DIM, 4, 5, 1));
    }
  }

  private static void assertRefused(float[] points, int dim, int clusters, int steps, Object... named) {
    assertNames(
        assertThrows(IllegalArgumentException.class, () -> KMeans.cluster(points, dim, clusters, steps, 1)), named);
  }
}
