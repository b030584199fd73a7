import dev.kvasir.AttendBatch;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Rows;
import dev.kvasir.method.Uniform;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/**
 * A step of speculative decoding: a draft proposes a tree of tokens, one call verifies all of them, and the path that the
 * model agrees with stays. Random numbers stand in for projections; what a guess is told must be what it would be told as
 * the newest token of its own path.
 */
public final class SpeculativeStep {

  private static final int CONTEXT = 400;
  /** The tree: who comes before each guess, -1 for the context. Two first tokens, and ways on from the first. */
  private static final int[] PARENTS = {-1, 0, 0, -1, 1};
  private static final int[] ACCEPTED = {0, 1, 4};

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(8).kvHeads(2).headDim(64).build();
  private static final int QUERY = GEOMETRY.querySize(0);
  private static final int ROW = GEOMETRY.rowSize(0);

  public static void main(String[] args) {
    Random random = new Random(3);
    int guesses = PARENTS.length;
    float[] keys = numbers(random, guesses * ROW); // after RoPE, each at the position that its depth in the tree means
    float[] values = numbers(random, guesses * ROW);
    float[] queries = numbers(random, guesses * QUERY);
    try (KvCache cache = KvCache.builder(GEOMETRY).method(Uniform.bits(4).window(64)).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, numbers(random, CONTEXT * ROW), numbers(random, CONTEXT * ROW), CONTEXT);
      KvSequence plain = sequence.fork();

      // A guess sees itself and its ancestors.
      long[] masks = new long[guesses];
      for (int i = 0; i < guesses; i++) {
        masks[i] = 1L << i | (PARENTS[i] < 0 ? 0 : masks[PARENTS[i]]);
      }
      float[] outputs = new float[guesses * QUERY];
      sequence.guess();
      sequence.append(0, keys, values, guesses);
      cache.attend(
          new AttendBatch(List.of(sequence)).tokensEach(guesses).masks(masks)
              .queries(Rows.of(queries)).outputs(Rows.of(outputs)));

      // The accepted path stays, as if it alone had been appended.
      sequence.keep(ACCEPTED);

      // One token after the other gives the same.
      double worst = 0;
      for (int guess : ACCEPTED) {
        append(plain, keys, values, guess);
        float[] output = new float[QUERY];
        plain.attend(0, Arrays.copyOfRange(queries, guess * QUERY, (guess + 1) * QUERY), output);
        for (int c = 0; c < QUERY; c++) {
          worst = Math.max(worst, Math.abs(output[c] - outputs[guess * QUERY + c]));
        }
      }
      System.out.printf(
          "SpeculativeStep: %d of %d guesses stay, outputs within %.1e of single steps%n",
          ACCEPTED.length, guesses, worst);
      if (sequence.length() != CONTEXT + ACCEPTED.length || !(worst < 1e-3)) {
        throw new AssertionError("a tree must give what its paths give");
      }
      plain.close();
    }
  }

  private static void append(KvSequence sequence, float[] keys, float[] values, int guess) {
    sequence.append(
        0,
        Arrays.copyOfRange(keys, guess * ROW, (guess + 1) * ROW),
        Arrays.copyOfRange(values, guess * ROW, (guess + 1) * ROW),
        1);
  }

  private static float[] numbers(Random random, int count) {
    float[] numbers = new float[count];
    for (int i = 0; i < count; i++) {
      numbers[i] = (float) random.nextGaussian();
    }
    return numbers;
  }
}
