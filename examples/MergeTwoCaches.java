import dev.kvasir.AttendBatch;
import dev.kvasir.KvAttention;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Rows;
import dev.kvasir.method.Uniform;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/**
 * One attention in two parts: a long document in a cache of few bits, which many conversations could share, and the
 * conversation in one of 16 bits. Log-sums put the two results together as if one cache held all tokens.
 */
public final class MergeTwoCaches {

  private static final int DOCUMENT = 1000;
  private static final int CONVERSATION = 50;

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(8).kvHeads(2).headDim(64).build();
  private static final int HEADS = GEOMETRY.queryHeads(0);
  private static final int QUERY = GEOMETRY.querySize(0);
  private static final int ROW = GEOMETRY.rowSize(0);

  public static void main(String[] args) {
    Random random = new Random(2);
    float[] keys = numbers(random, (DOCUMENT + CONVERSATION) * ROW);
    float[] values = numbers(random, (DOCUMENT + CONVERSATION) * ROW);
    float[] query = numbers(random, QUERY);
    try (KvCache compressed = KvCache.builder(GEOMETRY).method(Uniform.bits(4)).build();
        KvCache exact = KvCache.builder(GEOMETRY).build()) {
      float[] logSums = new float[HEADS];
      float[] otherLogSums = new float[HEADS];
      float[] outputs = attend(compressed, keys, values, 0, DOCUMENT, query, logSums);
      float[] others = attend(exact, keys, values, DOCUMENT, CONVERSATION, query, otherLogSums);
      KvAttention.merge(Rows.of(outputs), logSums, Rows.of(others), otherLogSums, 1, HEADS, GEOMETRY.headDim(0));

      float[] expected = attend(exact, keys, values, 0, DOCUMENT + CONVERSATION, query, otherLogSums);
      double error = 0;
      double norm = 0;
      for (int i = 0; i < QUERY; i++) {
        error += Math.pow(outputs[i] - expected[i], 2);
        norm += Math.pow(expected[i], 2);
      }
      System.out.printf("MergeTwoCaches: normalised error %.4f beside one exact cache%n", error / norm);
      if (!(error / norm < 0.05)) {
        throw new AssertionError("the parts do not make a whole");
      }
    }
  }

  private static float[] attend(
      KvCache cache, float[] keys, float[] values, int first, int tokens, float[] query, float[] logSums) {
    float[] outputs = new float[QUERY];
    try (KvSequence sequence = cache.newSequence()) {
      sequence.append(
          0,
          Arrays.copyOfRange(keys, first * ROW, (first + tokens) * ROW),
          Arrays.copyOfRange(values, first * ROW, (first + tokens) * ROW),
          tokens);
      cache.attend(
          new AttendBatch(List.of(sequence)).queries(Rows.of(query)).outputs(Rows.of(outputs)).logSums(logSums));
    }
    return outputs;
  }

  private static float[] numbers(Random random, int count) {
    float[] numbers = new float[count];
    for (int i = 0; i < count; i++) {
      numbers[i] = (float) random.nextGaussian();
    }
    return numbers;
  }
}
