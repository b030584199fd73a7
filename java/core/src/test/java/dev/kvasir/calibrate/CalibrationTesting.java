package dev.kvasir.calibrate;

import dev.kvasir.KvGeometry;
import java.util.Random;
import org.junit.jupiter.api.Assertions;

/** What several tests of calibration need: seeds, data, and the model "lab-a" where it is at hand. */
final class CalibrationTesting {

  private CalibrationTesting() {}

  /** Prints the seed of a randomised test; the system property kvasir.seed repeats one. */
  static Random random(String test) {
    long seed = Long.getLong("kvasir.seed", System.nanoTime() & 0xFFFFFFFFL);
    System.out.println(test + ": -Dkvasir.seed=" + seed);
    return new Random(seed);
  }

  static float[] gaussian(Random random, int count, double scale) {
    float[] data = new float[count];
    for (int i = 0; i < count; i++) {
      data[i] = (float) (scale * random.nextGaussian());
    }
    return data;
  }

  /** Fails unless the exception's message names every one of these. */
  static void assertNames(Throwable thrown, Object... named) {
    for (Object name : named) {
      Assertions.assertTrue(
          String.valueOf(thrown.getMessage()).contains(String.valueOf(name)),
          () -> "\"" + thrown.getMessage() + "\" does not name " + name);
    }
  }

  /** The geometry of lab-a. */
  static KvGeometry labGeometry() {
    return KvGeometry.builder().layers(8).queryHeads(8).kvHeads(2).headDim(128).build();
  }
}
