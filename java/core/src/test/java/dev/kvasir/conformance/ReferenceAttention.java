package dev.kvasir.conformance;

/** Attention as its definition has it, in double precision over decoded rows. */
record ReferenceAttention(int queryHeads, int kvHeads, int headDim, int slidingWindow) {

  /**
   * Outputs [tokens][queryHeads][headDim] of the queries of the newest tokens.
   *
   * @param keys rows [.][kvHeads][headDim] of the tokens firstRow, firstRow + 1, ...
   * @param values the same
   * @param length tokens of the sequence; query i stands at position length - tokens + i
   * @param queries [tokens][queryHeads][headDim]
   */
  double[] attend(float[] keys, float[] values, int firstRow, int length, float[] queries, int tokens) {
    double[] outputs = new double[tokens * queryHeads * headDim];
    for (int i = 0; i < tokens; i++) {
      int position = length - tokens + i;
      int oldest = slidingWindow == 0 ? 0 : Math.max(0, position - slidingWindow + 1);
      for (int head = 0; head < queryHeads; head++) {
        int at = (i * queryHeads + head) * headDim;
        int kvHead = head / (queryHeads / kvHeads);
        double[] weights = softmax(scores(queries, at, keys, kvHead, oldest - firstRow, position + 1 - firstRow));
        for (int t = 0; t < weights.length; t++) {
          int row = ((oldest - firstRow + t) * kvHeads + kvHead) * headDim;
          for (int c = 0; c < headDim; c++) {
            outputs[at + c] += weights[t] * values[row + c];
          }
        }
      }
    }
    return outputs;
  }

  private double[] scores(float[] queries, int at, float[] keys, int kvHead, int first, int end) {
    double[] scores = new double[end - first];
    for (int t = first; t < end; t++) {
      int row = (t * kvHeads + kvHead) * headDim;
      double dot = 0;
      for (int c = 0; c < headDim; c++) {
        dot += (double) queries[at + c] * keys[row + c];
      }
      scores[t - first] = dot / Math.sqrt(headDim);
    }
    return scores;
  }

  private static double[] softmax(double[] scores) {
    double highest = Double.NEGATIVE_INFINITY;
    for (double score : scores) {
      highest = Math.max(highest, score);
    }
    double sum = 0;
    for (int t = 0; t < scores.length; t++) {
      scores[t] = Math.exp(scores[t] - highest);
      sum += scores[t];
    }
    for (int t = 0; t < scores.length; t++) {
      scores[t] /= sum;
    }
    return scores;
  }

  /** Normalised mean squared error of part of an array; infinite where anything is not a number. */
  static double nmse(double[] expected, float[] actual, int offset) {
    double error = 0;
    double power = 0;
    for (int i = 0; i < expected.length; i++) {
      double difference = actual[offset + i] - expected[i];
      error += difference * difference;
      power += expected[i] * expected[i];
    }
    return Double.isNaN(error) ? Double.POSITIVE_INFINITY : error / power;
  }
}
