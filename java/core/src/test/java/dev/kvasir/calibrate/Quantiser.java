package dev.kvasir.calibrate;

import java.util.function.DoubleUnaryOperator;

/** Asymmetric quantisation of one group by its definition, in double precision; shares nothing with the library. */
final class Quantiser {

  private Quantiser() {}

  /** What a page returns: elements rounded to float16, minimum and range in float16, the range rounded up. */
  static double[] stored(float[] elements, int bits) {
    double[] halves = new double[elements.length];
    for (int i = 0; i < elements.length; i++) {
      halves[i] = half(elements[i], Math::rint);
    }
    double least = min(halves);
    return rounded(halves, least, half(max(halves) - least, Math::ceil), bits);
  }

  /** The same without any rounding of elements, minimum and range. */
  static double[] exact(double[] elements, int bits) {
    double least = min(elements);
    return rounded(elements, least, max(elements) - least, bits);
  }

  private static double[] rounded(double[] elements, double least, double range, int bits) {
    double step = range / ((1 << bits) - 1);
    double[] result = new double[elements.length];
    for (int i = 0; i < elements.length; i++) {
      result[i] = step == 0 ? least : least + Math.rint((elements[i] - least) / step) * step;
    }
    return result;
  }

  private static double half(double value, DoubleUnaryOperator rounding) {
    double step = Math.max(Math.scalb(1.0, Math.getExponent(value) - 10), 0x1p-24);
    return rounding.applyAsDouble(value / step) * step;
  }

  private static double min(double[] values) {
    double result = values[0];
    for (double value : values) {
      result = Math.min(result, value);
    }
    return result;
  }

  private static double max(double[] values) {
    double result = values[0];
    for (double value : values) {
      result = Math.max(result, value);
    }
    return result;
  }
}
