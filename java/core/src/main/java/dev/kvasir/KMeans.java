package dev.kvasir;

import dev.kvasir.internal.NativeKMeans;
import dev.kvasir.internal.Sizes;

/**
 * Euclidean k-means, as {@link PatternKv} mines its patterns with it; for the analysis of keys and values on its own.
 *
 * <pre>{@code
 * KMeans.Result result = KMeans.cluster(keys, 128, 32, 30, 1);
 * }</pre>
 *
 * <p>The result depends on the arguments alone, not on the number of threads nor on the backend.
 */
public final class KMeans {

  /** Limits of the native code. */
  private static final int MAX_DIM = 1024;

  private static final int MAX_CLUSTERS = 65536;
  private static final int MAX_STEPS = 1_000_000;

  private KMeans() {}

  /**
   * What was found.
   *
   * @param centres {@code [min(clusters, points)][dim]}
   * @param labels the nearest centre of each point
   * @param objective the sum of the squared distances of all points to their nearest centres
   */
  public record Result(float[] centres, int[] labels, double objective) {}

  /**
   * Groups points around centres: greedy k-means++ seeding, then Lloyd steps until no centre moves by more than 1e-4 of
   * its length. Where there are fewer points than clusters, every point is a centre.
   *
   * @param points {@code [n][dim]}, one or more points, each element at most 1e15 in magnitude
   * @param dim a multiple of 16 in 16..1024
   * @param clusters 1..65536
   * @param maxSteps most Lloyd steps, 0..1,000,000
   * @param seed any number; equal seeds give equal results
   * @return centres, labels and the objective
   * @throws IllegalArgumentException if a number is out of range or the points are not a multiple of {@code dim}
   * @throws NotFiniteException if an element is NaN, infinite or above 1e15 in magnitude
   */
  public static Result cluster(float[] points, int dim, int clusters, int maxSteps, long seed) {
    require("dim", dim, 16, MAX_DIM);
    if (dim % 16 != 0) {
      throw new IllegalArgumentException("dim is " + dim + ", not a multiple of 16");
    }
    require("clusters", clusters, 1, MAX_CLUSTERS);
    require("maxSteps", maxSteps, 0, MAX_STEPS);
    if (points.length == 0 || points.length % dim != 0) {
      throw new IllegalArgumentException(
          "points has " + points.length + " elements, not one or more points of " + dim);
    }
    int count = points.length / dim;
    float[] centres = new float[(int) Sizes.product(Math.min(clusters, count), dim)];
    int[] labels = new int[count];
    double objective = NativeKMeans.cluster(points, count, dim, clusters, maxSteps, seed, centres, labels);
    return new Result(centres, labels, objective);
  }

  private static void require(String name, int value, int least, int most) {
    if (value < least || value > most) {
      throw new IllegalArgumentException(name + " is " + value + ", not " + least + ".." + most);
    }
  }
}
