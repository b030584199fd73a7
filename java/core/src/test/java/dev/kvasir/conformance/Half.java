package dev.kvasir.conformance;

/** IEEE float16 by its definition, in double arithmetic. */
final class Half {

  private Half() {}

  /** The value of a finite float16. */
  static double value(int bits) {
    int exponent = bits >> 10 & 31;
    int fraction = bits & 1023;
    if (exponent == 31) {
      throw new AssertionError("float16 " + Integer.toHexString(bits & 0xFFFF) + " is not finite");
    }
    double magnitude = exponent == 0 ? Math.scalb(fraction, -24) : Math.scalb(1024.0 + fraction, exponent - 25);
    return (bits & 0x8000) == 0 ? magnitude : -magnitude;
  }

  /** Nearest float16, ties to even, of a value below 65520 in magnitude. */
  static int nearest(double value) {
    double magnitude = Math.abs(value);
    int sign = Math.copySign(1.0, value) < 0 ? 0x8000 : 0;
    return sign | bits(Math.rint(magnitude / spacing(magnitude)) * spacing(magnitude));
  }

  /** Smallest float16 that is at least this value, 0 to 65504. */
  static int up(double value) {
    return bits(Math.ceil(value / spacing(value)) * spacing(value));
  }

  /** Largest float16 that is at most this value, -65504 to 65504. */
  static int down(double value) {
    double magnitude = Math.abs(value);
    double steps = magnitude / spacing(magnitude);
    return value < 0
        ? 0x8000 | bits(Math.ceil(steps) * spacing(magnitude))
        : bits(Math.floor(steps) * spacing(magnitude));
  }

  static float round(double value) {
    return (float) value(nearest(value));
  }

  /** Distance between neighbouring float16 values around a magnitude. */
  private static double spacing(double magnitude) {
    return Math.scalb(1.0, Math.max(Math.getExponent(magnitude) - 10, -24));
  }

  /** The bits of a value that is a float16 already. */
  private static int bits(double magnitude) {
    int steps = (int) (magnitude / spacing(magnitude));
    int exponent = Math.getExponent(spacing(magnitude)) + 25;
    return steps < 1024 ? steps : exponent << 10 | steps - 1024;
  }
}
