package dev.kvasir.lab;

import java.util.Arrays;
import java.util.SplittableRandom;

/**
 * Keys, values and queries that look like those of a model where it matters for compression: tokens gather in
 * clusters, by their keys and by their values; keys have a few channels that are far from zero and vary widely,
 * values have none; and a query attends mostly to the tokens of one cluster.
 */
final class SyntheticTokens {

  private static final int CLUSTERS = 64;
  private static final int OUTLIER_CHANNELS = 4;
  private static final double OUTLIER_OFFSET = 8;
  private static final double OUTLIER_SPREAD = 3;
  private static final double CLUSTER_SPREAD = 0.6;

  private final SplittableRandom random;
  private final int kvHeads;
  private final int queryHeads;
  private final int dim;
  private final float[][] keyCentres;
  private final float[][] valueCentres;
  private final float[] offsets;
  private final float[] spreads;

  SyntheticTokens(long seed, int queryHeads, int kvHeads, int dim) {
    this.random = new SplittableRandom(seed);
    this.kvHeads = kvHeads;
    this.queryHeads = queryHeads;
    this.dim = dim;
    this.keyCentres = centres(kvHeads * dim);
    this.valueCentres = centres(kvHeads * dim);
    this.offsets = new float[kvHeads * dim];
    this.spreads = new float[kvHeads * dim];
    Arrays.fill(spreads, 1f);
    for (int head = 0; head < kvHeads; head++) {
      for (int i = 0; i < OUTLIER_CHANNELS; i++) {
        int channel = head * dim + random.nextInt(dim);
        offsets[channel] = (float) (random.nextBoolean() ? OUTLIER_OFFSET : -OUTLIER_OFFSET);
        spreads[channel] = (float) OUTLIER_SPREAD;
      }
    }
  }

  /** Fills whole rows of keys and values. */
  void fill(float[] keys, float[] values) {
    int row = kvHeads * dim;
    for (int token = 0; token < keys.length / row; token++) {
      int cluster = random.nextInt(CLUSTERS);
      for (int i = 0; i < row; i++) {
        keys[token * row + i] = offsets[i] + spreads[i] * near(keyCentres[cluster][i]);
        values[token * row + i] = near(valueCentres[cluster][i]);
      }
    }
  }

  /** One token's queries, each drawn to the keys of one cluster. */
  float[] query() {
    float[] query = new float[queryHeads * dim];
    for (int head = 0; head < queryHeads; head++) {
      float[] centre = keyCentres[random.nextInt(CLUSTERS)];
      int kvOffset = head / (queryHeads / kvHeads) * dim;
      for (int i = 0; i < dim; i++) {
        double direction = centre[kvOffset + i] / spreads[kvOffset + i];
        query[head * dim + i] = (float) (0.7 * direction + 0.3 * random.nextGaussian() / spreads[kvOffset + i]);
      }
    }
    return query;
  }

  private float near(float centre) {
    return (float) (centre + CLUSTER_SPREAD * random.nextGaussian());
  }

  private float[][] centres(int elements) {
    float[][] all = new float[CLUSTERS][elements];
    for (float[] centre : all) {
      for (int i = 0; i < elements; i++) {
        centre[i] = (float) random.nextGaussian();
      }
    }
    return all;
  }
}
