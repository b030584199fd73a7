package dev.kvasir.codebook;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.LabModel;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.training.KeyTrainer;
import dev.kvasir.training.ValueFitter;
import java.io.IOException;
import java.util.Arrays;
import org.junit.jupiter.api.Test;

/** Codebooks from the keys and values of a real model, against uniform quantisation; skipped where it is missing. */
class LabCodebooksTest {

  private static final int HEADS = 2;
  private static final int CHANNELS = 128;
  private static final int WIDTH = HEADS * CHANNELS;
  private static final int TOKENS = 512;
  /** Tokens to train on; the other 128 are one page that the codebooks have not seen. */
  private static final int TRAINED = 384;

  private static float[] read(Safetensors file, String name) throws IOException {
    float[] headsFirst = file.read(name).toFloats();
    float[] rows = new float[headsFirst.length];
    for (int h = 0; h < HEADS; h++) {
      for (int t = 0; t < TOKENS; t++) {
        System.arraycopy(headsFirst, (h * TOKENS + t) * CHANNELS, rows, (t * HEADS + h) * CHANNELS, CHANNELS);
      }
    }
    return rows;
  }

  @Test
  void lowerErrorThanUniform() throws Exception {
    try (Safetensors file = Safetensors.open(LabModel.folder().resolve("calib.safetensors"))) {
      System.out.println("lab-a, 384 tokens to train on; mean squared error / mean square, seen | unseen tokens");
      for (int layer : new int[] {0, 4, 7}) {
        float[] keys = read(file, "layers." + layer + ".k_pre");
        float[] values = read(file, "layers." + layer + ".v");
        for (int bits = 1; bits <= 2; bits++) {
          // Tables of 16 entries: 384 tokens say nothing about larger ones.
          double[] ofKeys = keyErrors(keys, bits);
          double[] ofValues = valueErrors(values, bits);
          System.out.printf(
              "layer %d, %d bit: keys %.4f | %.4f, uniform %.4f | %.4f;  values %.4f | %.4f, uniform %.4f | %.4f%n",
              layer, bits, ofKeys[0], ofKeys[1], ofKeys[2], ofKeys[3], ofValues[0], ofValues[1], ofValues[2],
              ofValues[3]);
          for (double[] errors : new double[][] {ofKeys, ofValues}) {
            assertTrue(errors[0] < errors[2], "seen tokens");
            assertTrue(errors[1] < errors[3], "unseen tokens");
          }
        }
      }
    }
  }

  private static double[] keyErrors(float[] rows, int bits) {
    KeyCodebook codebook;
    try (KeyTrainer trainer =
        KeyTrainer.builder(HEADS, CHANNELS).entries(16).stages(16 * bits).steps(20).build()) {
      trainer.add(rows, TRAINED);
      codebook = trainer.train(progress -> {});
    }
    return errors(rows, CommVqTesting.stored(codebook, rows, 2), true, bits);
  }

  private static double[] valueErrors(float[] rows, int bits) {
    ValueCodebook codebook;
    try (ValueFitter fitter = ValueFitter.of(WIDTH, bits * WIDTH, 5)) {
      fitter.add(rows, TRAINED);
      codebook = fitter.train(progress -> {});
    }
    return errors(rows, CommVqTesting.stored(codebook, rows), false, bits);
  }

  /** Relative errors of seen and unseen tokens, and those of uniform quantisation of both. */
  private static double[] errors(float[] rows, float[] read, boolean keys, int bits) {
    int split = TRAINED * WIDTH;
    double[] result = new double[4];
    for (int part = 0; part < 2; part++) {
      float[] mine = Arrays.copyOfRange(rows, part == 0 ? 0 : split, part == 0 ? split : rows.length);
      float[] other = Arrays.copyOfRange(read, part == 0 ? 0 : split, part == 0 ? split : rows.length);
      double square = CommVqTesting.meanSquare(mine);
      result[part] = CommVqTesting.error(mine, other) / square;
      result[2 + part] = CommVqTesting.uniformError(mine, WIDTH, keys, 128, bits) / square;
    }
    return result;
  }
}
