package dev.kvasir.lab.evaluate;

import java.util.List;

/**
 * A measured number with its spread.
 *
 * @param value the number; NaN if nothing was measured
 * @param error one standard error, from the scatter over samples; NaN for fewer than two
 * @param samples how many samples
 */
public record Figure(double value, double error, int samples) {

  /** Nothing was measured. */
  public static final Figure NONE = new Figure(Double.NaN, Double.NaN, 0);

  /** The mean of some samples. */
  public static Figure mean(List<Double> values) {
    double[] ones = new double[values.size()];
    java.util.Arrays.fill(ones, 1);
    return ratio(values.stream().mapToDouble(Double::doubleValue).toArray(), ones);
  }

  /**
   * The ratio of two sums over samples, such as bits per byte. Its error follows from how far each sample's numerator
   * is from the common ratio times its denominator (the usual linearised ratio estimator).
   */
  public static Figure ratio(double[] above, double[] below) {
    int count = above.length;
    double over = java.util.Arrays.stream(above).sum();
    double under = java.util.Arrays.stream(below).sum();
    if (count == 0 || under == 0) {
      return NONE;
    }
    double ratio = over / under;
    double squares = 0;
    for (int i = 0; i < count; i++) {
      squares += Math.pow(above[i] - ratio * below[i], 2);
    }
    double error = count < 2 ? Double.NaN : Math.sqrt(squares * count / (count - 1)) / under;
    return new Figure(ratio, error, count);
  }

  /** Whether anything was measured. */
  public boolean present() {
    return samples > 0;
  }
}
