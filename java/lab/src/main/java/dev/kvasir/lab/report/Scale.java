package dev.kvasir.lab.report;

import java.util.ArrayList;
import java.util.List;

/** Maps numbers to places along an axis, linearly or by logarithm, and knows where to put ticks. */
final class Scale {

  private final boolean logarithmic;
  private final double low;
  private final double high;
  private final double from;
  private final double to;

  private Scale(boolean logarithmic, double low, double high, double from, double to) {
    this.logarithmic = logarithmic;
    this.low = low;
    this.high = high;
    this.from = from;
    this.to = to;
  }

  /** From {@code low} at place {@code from} to {@code high} at place {@code to}. */
  static Scale linear(double low, double high, double from, double to) {
    return new Scale(false, low, high > low ? high : low + 1, from, to);
  }

  /** The same by logarithm, for positive numbers. */
  static Scale logarithmic(double low, double high, double from, double to) {
    return new Scale(true, low, high > low ? high : low * 10, from, to);
  }

  /** The place of a number; numbers beyond the ends stay at the ends. */
  double at(double value) {
    double bounded = Math.max(low, Math.min(high, value));
    double share = logarithmic ? Math.log(bounded / low) / Math.log(high / low) : (bounded - low) / (high - low);
    return from + share * (to - from);
  }

  /** Round numbers between the ends: about five, or for logarithms 1, 2 and 5 times powers of ten if these are few. */
  List<Double> ticks() {
    List<Double> ticks = new ArrayList<>();
    if (logarithmic) {
      double[] steps = high / low > 300 ? new double[] {1} : new double[] {1, 2, 5};
      for (int power = (int) Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
        for (double step : steps) {
          add(ticks, step * Math.pow(10, power));
        }
      }
    } else {
      double rough = (high - low) / 5;
      double power = Math.pow(10, Math.floor(Math.log10(rough)));
      double step = power * (rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : rough / power < 7.5 ? 5 : 10);
      for (long i = (long) Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i++) {
        add(ticks, i * step);
      }
    }
    return ticks;
  }

  private void add(List<Double> ticks, double tick) {
    if (tick >= low * (1 - 1e-9) - 1e-12 && tick <= high * (1 + 1e-9)) {
      ticks.add(tick);
    }
  }

  /** A number as short as it can be. */
  static String text(double value) {
    if (value != 0 && Math.abs(value) < 1e-3) {
      return Svg.format("%.0e", value).replace("e-0", "e-");
    }
    String text = Svg.format("%.4f", value);
    return text.contains(".") ? text.replaceAll("0+$", "").replaceAll("\\.$", "") : text;
  }
}
