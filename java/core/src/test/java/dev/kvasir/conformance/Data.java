package dev.kvasir.conformance;

/**
 * Test data from an integer hash: the same on every machine and in every version of Java.
 *
 * <p>Elements are float16 values, so that what a page was encoded from is known exactly.
 */
enum Data {
  /** About standard normal, independent. */
  NORMAL {
    @Override
    double element(int seed, int token, int channel) {
      return normal(seed, token, channel);
    }
  },
  /** As keys are: a bias per channel, and some channels twenty times wider. */
  OUTLIERS {
    @Override
    double element(int seed, int token, int channel) {
      double spread = hash(seed, -1, channel) % 16 == 0 ? 20 : 1;
      return 2 * normal(seed, -2, channel) + spread * normal(seed, token, channel);
    }
  },
  /** Constant channels and constant tokens among others. */
  CONSTANT {
    @Override
    double element(int seed, int token, int channel) {
      boolean constant = hash(seed, token, -1) % 5 == 0 || hash(seed, -1, channel) % 3 == 0;
      return constant ? 1.25 : normal(seed, token, channel);
    }
  },
  /** From the smallest float16 to the largest that is accepted: differences that float32 has to round. */
  MAGNITUDES {
    @Override
    double element(int seed, int token, int channel) {
      int hash = hash(seed, token, channel);
      double magnitude = Math.min(32752, Math.scalb(1 + (hash & 1023) / 1024.0, (hash >>> 10) % 40 - 25));
      return hash < 0 ? -magnitude : magnitude;
    }
  },
  /** Zeros of both signs, and ones. */
  ZEROS {
    @Override
    double element(int seed, int token, int channel) {
      return switch (hash(seed, token, channel) & 3) {
        case 0 -> -0.0;
        case 1 -> 1.0;
        default -> 0.0;
      };
    }
  };

  abstract double element(int seed, int token, int channel);

  /** Rows [tokens][width]. */
  float[] rows(int seed, int tokens, int width) {
    float[] rows = new float[tokens * width];
    for (int token = 0; token < tokens; token++) {
      for (int channel = 0; channel < width; channel++) {
        rows[token * width + channel] = Half.round(element(seed, token, channel));
      }
    }
    return rows;
  }

  /** A well-mixed hash of three numbers. */
  static int hash(int a, int b, int c) {
    int h = a * 0x9E3779B9 + b * 0x85EBCA6B + c * 0xC2B2AE35;
    h = (h ^ h >>> 16) * 0x7FEB352D;
    h = (h ^ h >>> 15) * 0x846CA68B;
    return h ^ h >>> 16;
  }

  /** Sums of eight bytes are close to normal: mean 1020, standard deviation 209. */
  private static double normal(int seed, int token, int channel) {
    int first = hash(seed, token, channel);
    int second = hash(first, token, channel);
    int sum = 0;
    for (int shift = 0; shift < 32; shift += 8) {
      sum += (first >>> shift & 0xFF) + (second >>> shift & 0xFF);
    }
    return (sum - 1020) / 209.0;
  }
}
