package dev.kvasir.internal;

import dev.kvasir.internal.jni.Native;

/** The native k-means, on arguments that have been checked. */
public final class NativeKMeans {

  private NativeKMeans() {}

  /** Fills {@code centres} and {@code labels}; returns the objective. */
  public static double cluster(
      float[] points, int count, int dim, int clusters, int maxSteps, long seed, float[] centres, int[] labels) {
    return NativeCall.get(
        () -> Native.kmeans(points, count, dim, clusters, maxSteps, seed, centres, labels));
  }
}
