package example;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.method.Uniform;
import java.util.Random;

/** A program of a user: builds a cache, fills it, attends, and compares with attention over the plain numbers. */
public final class Smoke {

  private static final int LAYERS = 2;
  private static final int QUERY_HEADS = 8;
  private static final int KV_HEADS = 2;
  private static final int HEAD_DIM = 64;
  private static final int TOKENS = 300; // two sealed pages and a window

  public static void main(String[] args) {
    KvGeometry geometry =
        KvGeometry.builder().layers(LAYERS).queryHeads(QUERY_HEADS).kvHeads(KV_HEADS).headDim(HEAD_DIM).build();
    Random random = new Random(1);
    double worst = 0;
    try (KvCache cache = KvCache.builder(geometry).method(Uniform.bits(4).sinks(4)).build();
        KvSequence sequence = cache.newSequence()) {
      for (int layer = 0; layer < LAYERS; layer++) {
        float[] keys = gaussian(random, TOKENS * KV_HEADS * HEAD_DIM);
        float[] values = gaussian(random, TOKENS * KV_HEADS * HEAD_DIM);
        float[] query = gaussian(random, QUERY_HEADS * HEAD_DIM);
        float[] output = new float[query.length];
        sequence.append(layer, keys, values, TOKENS);
        sequence.attend(layer, query, output);
        worst = Math.max(worst, error(plainAttention(query, keys, values), output));
      }
    }
    // Four bits over a range of about six standard deviations: steps of 0.4, so about 1% of the variance.
    System.out.printf("Smoke: normalised error of 4-bit attention %.4f%n", worst);
    if (!(worst > 0 && worst < 0.05)) {
      throw new AssertionError("the error should be above 0 and below 0.05");
    }
  }

  private static float[] gaussian(Random random, int length) {
    float[] result = new float[length];
    for (int i = 0; i < length; i++) {
      result[i] = (float) random.nextGaussian();
    }
    return result;
  }

  private static double[] plainAttention(float[] query, float[] keys, float[] values) {
    double[] output = new double[query.length];
    for (int head = 0; head < QUERY_HEADS; head++) {
      int row = head / (QUERY_HEADS / KV_HEADS) * HEAD_DIM;
      double[] weights = new double[TOKENS];
      double sum = 0;
      for (int token = 0; token < TOKENS; token++) {
        double score = 0;
        for (int i = 0; i < HEAD_DIM; i++) {
          score += query[head * HEAD_DIM + i] * keys[token * KV_HEADS * HEAD_DIM + row + i];
        }
        weights[token] = Math.exp(score / Math.sqrt(HEAD_DIM));
        sum += weights[token];
      }
      for (int token = 0; token < TOKENS; token++) {
        for (int i = 0; i < HEAD_DIM; i++) {
          output[head * HEAD_DIM + i] += weights[token] / sum * values[token * KV_HEADS * HEAD_DIM + row + i];
        }
      }
    }
    return output;
  }

  /** Squared error over the squared length. */
  private static double error(double[] expected, float[] actual) {
    double difference = 0;
    double length = 0;
    for (int i = 0; i < expected.length; i++) {
      difference += (expected[i] - actual[i]) * (expected[i] - actual[i]);
      length += expected[i] * expected[i];
    }
    return difference / length;
  }
}
