package dev.kvasir.stress;

import dev.kvasir.KvGeometry;

/** Attention by its definition, in double precision. */
final class PlainAttention {

  private PlainAttention() {}

  /**
   * How far an output is from what it should be.
   *
   * @param keys {@code [count][kvHeads][headDim]}, all that the query sees
   * @param values the same
   * @return the normalised mean squared error; infinite where anything is not a number
   */
  static double error(
      KvGeometry geometry, int layer, float[] query, float[] keys, float[] values, int count, float[] output) {
    int dim = geometry.headDim(layer);
    int row = geometry.rowSize(layer);
    int group = geometry.queryHeads(layer) / geometry.kvHeads(layer);
    double error = 0;
    double power = 0;
    for (int head = 0; head < geometry.queryHeads(layer); head++) {
      int offset = head / group * dim;
      double[] weights = weights(query, head * dim, keys, offset, row, dim, count, geometry.softmaxScale(layer));
      for (int c = 0; c < dim; c++) {
        double expected = 0;
        for (int t = 0; t < count; t++) {
          expected += weights[t] * values[t * row + offset + c];
        }
        double difference = output[head * dim + c] - expected;
        error += difference * difference;
        power += expected * expected;
      }
    }
    return Double.isNaN(error) ? Double.POSITIVE_INFINITY : error / (power + 1e-30);
  }

  private static double[] weights(
      float[] query, int at, float[] keys, int offset, int row, int dim, int count, double scale) {
    double[] weights = new double[count];
    double highest = Double.NEGATIVE_INFINITY;
    for (int t = 0; t < count; t++) {
      for (int c = 0; c < dim; c++) {
        weights[t] += (double) query[at + c] * keys[t * row + offset + c];
      }
      weights[t] *= scale;
      highest = Math.max(highest, weights[t]);
    }
    double sum = 0;
    for (int t = 0; t < count; t++) {
      weights[t] = Math.exp(weights[t] - highest);
      sum += weights[t];
    }
    for (int t = 0; t < count; t++) {
      weights[t] /= sum;
    }
    return weights;
  }
}
