import dev.kvasir.AttendBatch;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Rows;
import dev.kvasir.method.Uniform;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/**
 * The loop of an engine: several sequences of different lengths take a step together, one of them still reads its prompt.
 * Each layer is one call of attention, whatever the batch. Random numbers stand in for a model's projections.
 */
public final class DecodeLoop {

  private static final int LAYERS = 4;
  private static final int STEPS = 20;
  private static final int CHUNK = 32; // tokens of a prompt that are read at once

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(LAYERS).queryHeads(8).kvHeads(2).headDim(64).slidingWindow(1, 256).build();

  public static void main(String[] args) {
    Random random = new Random(1);
    try (KvCache cache = KvCache.builder(GEOMETRY).method(Uniform.bits(4)).build()) {
      List<KvSequence> sequences = new ArrayList<>();
      for (int promptTokens : new int[] {300, 40, 7}) {
        KvSequence sequence = cache.newSequence();
        for (int layer = 0; layer < LAYERS; layer++) {
          sequence.append(layer, rows(random, promptTokens, layer), rows(random, promptTokens, layer), promptTokens);
        }
        sequences.add(sequence);
      }
      KvSequence newcomer = cache.newSequence(); // its prompt of 5 chunks is read beside the others' steps
      sequences.add(newcomer);

      for (int step = 0; step < STEPS; step++) {
        int[] tokens = {1, 1, 1, step < 5 ? CHUNK : 1};
        int total = 0;
        for (int each : tokens) {
          total += each;
        }
        AttendBatch batch = new AttendBatch(sequences).tokens(tokens);
        float[] outputs = new float[total * GEOMETRY.querySize(0)];
        for (int layer = 0; layer < LAYERS; layer++) {
          for (int i = 0; i < tokens.length; i++) {
            sequences.get(i).append(layer, rows(random, tokens[i], layer), rows(random, tokens[i], layer), tokens[i]);
          }
          float[] queries = numbers(random, total * GEOMETRY.querySize(layer));
          cache.attend(batch.layer(layer).queries(Rows.of(queries)).outputs(Rows.of(outputs)));
        }
        require(outputs);
      }
      if (newcomer.length() != 5 * CHUNK + STEPS - 5) {
        throw new AssertionError("the newcomer has " + newcomer.length() + " tokens");
      }
      System.out.printf(
          "DecodeLoop: %d steps of %d sequences, %d calls of attention%n", STEPS, sequences.size(), STEPS * LAYERS);
    }
  }

  private static float[] rows(Random random, int tokens, int layer) {
    return numbers(random, tokens * GEOMETRY.rowSize(layer));
  }

  private static float[] numbers(Random random, int count) {
    float[] numbers = new float[count];
    for (int i = 0; i < count; i++) {
      numbers[i] = (float) random.nextGaussian();
    }
    return numbers;
  }

  private static void require(float[] outputs) {
    for (float output : outputs) {
      if (!Float.isFinite(output) || Math.abs(output) > 10) {
        throw new AssertionError("an output is " + output);
      }
    }
  }
}
