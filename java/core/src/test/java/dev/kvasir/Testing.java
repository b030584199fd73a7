package dev.kvasir;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.Random;
import org.junit.jupiter.api.Assertions;

/** What several tests need: seeds, data, buffers, an attention that is plain to see. */
public final class Testing {

  private Testing() {}

  /** Prints the seed of a randomised test; the system property kvasir.seed repeats one. */
  public static Random random(String test) {
    long seed = Long.getLong("kvasir.seed", System.nanoTime() & 0xFFFFFFFFL);
    System.out.println(test + ": -Dkvasir.seed=" + seed);
    return new Random(seed);
  }

  /** A builder on the backend under test. */
  public static KvCache.Builder cache(KvGeometry geometry) {
    return KvCache.builder(geometry).backend(backend());
  }

  private static String backend() {
    return System.getProperty("kvasir.test.backend", "auto");
  }

  /** Whether that is a GPU. */
  public static boolean onDevice() {
    return backend().equals("cuda");
  }

  /** Two layers, 4 query heads, 2 kv heads, 32 channels: 64 elements in a row, 128 in a query. */
  public static KvGeometry small() {
    return KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(32).build();
  }

  public static float[] gaussian(Random random, int count) {
    return gaussian(random, count, 1);
  }

  public static float[] gaussian(Random random, int count, double scale) {
    float[] data = new float[count];
    for (int i = 0; i < count; i++) {
      data[i] = (float) (scale * random.nextGaussian());
    }
    return data;
  }

  public static FloatBuffer direct(float[] data) {
    return direct(data.length).put(0, data);
  }

  public static FloatBuffer direct(int count) {
    return ByteBuffer.allocateDirect(count * Float.BYTES).order(ByteOrder.nativeOrder()).asFloatBuffer();
  }

  public static ShortBuffer direct(short[] data) {
    return ByteBuffer.allocateDirect(data.length * Short.BYTES)
        .order(ByteOrder.nativeOrder())
        .asShortBuffer()
        .put(0, data);
  }

  /** The value rounded to float16, to nearest, ties to even. For magnitudes below 65520. */
  public static float half(float value) {
    double magnitude = Math.abs((double) value);
    double step = Math.max(Math.ulp((float) magnitude) * (double) (1 << 13), 0x1p-24);
    return (float) Math.copySign(Math.rint(magnitude / step) * step, value);
  }

  /** The bits of a value that is a float16. */
  public static short halfBits(float value) {
    float magnitude = Math.abs(value);
    int sign = (Float.floatToRawIntBits(value) >>> 16) & 0x8000;
    if (magnitude < 0x1p-14f) {
      return (short) (sign | (int) (magnitude * 0x1p24f));
    }
    return (short) (sign | ((Float.floatToRawIntBits(magnitude) - 0x38000000) >>> 13));
  }

  /** Attention of one query token over rows first .. count-1 of keys and values, in double precision. */
  public static double[] attention(
      KvGeometry g, int layer, float[] query, float[] keys, float[] values, int first, int count) {
    int dim = g.headDim(layer);
    int row = g.rowSize(layer);
    int group = g.queryHeads(layer) / g.kvHeads(layer);
    double[] output = new double[g.querySize(layer)];
    for (int head = 0; head < g.queryHeads(layer); head++) {
      int offset = head / group * dim;
      double[] scores = new double[count];
      double max = Double.NEGATIVE_INFINITY;
      for (int token = first; token < count; token++) {
        for (int i = 0; i < dim; i++) {
          scores[token] += (double) query[head * dim + i] * keys[token * row + offset + i];
        }
        scores[token] *= g.softmaxScale(layer);
        max = Math.max(max, scores[token]);
      }
      double sum = 0;
      for (int token = first; token < count; token++) {
        scores[token] = Math.exp(scores[token] - max);
        sum += scores[token];
      }
      for (int token = first; token < count; token++) {
        for (int i = 0; i < dim; i++) {
          output[head * dim + i] += scores[token] / sum * values[token * row + offset + i];
        }
      }
    }
    return output;
  }

  /** Asserts a normalised mean squared error of at most 1e-6. */
  public static void assertClose(double[] expected, float[] actual, int offset, String where) {
    double error = 0;
    double norm = 0;
    for (int i = 0; i < expected.length; i++) {
      double difference = expected[i] - actual[offset + i];
      error += difference * difference;
      norm += expected[i] * expected[i];
    }
    Assertions.assertTrue(error <= 1e-6 * norm + 1e-30, () -> where + ": far from the reference");
  }

  /** Asserts that a message names all of these. */
  public static void assertNames(Throwable thrown, Object... parts) {
    for (Object part : parts) {
      Assertions.assertTrue(
          String.valueOf(thrown.getMessage()).contains(part.toString()), () -> "no '" + part + "' in: " + thrown);
    }
  }

  /** Length of the difference, relative. */
  public static double difference(float[] expected, float[] found) {
    double squares = 0;
    double all = 0;
    for (int i = 0; i < expected.length; i++) {
      squares += Math.pow(expected[i] - found[i], 2);
      all += Math.pow(expected[i], 2);
    }
    return Math.sqrt(squares / all);
  }
}
