import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.method.PmKvq;
import java.util.Random;

/**
 * A session that outgrows its memory: it begins with 16 bits, and its oldest pages give up bits when the budget is full. Where even
 * the fewest do not fit, a step is refused before it begins, and the session stays as it is.
 */
public final class LongSession {

  private static final int CHUNK = 64;
  private static final long BUDGET = 1_000_000;

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(2).queryHeads(8).kvHeads(2).headDim(64).build();

  public static void main(String[] args) {
    Random random = new Random(4);
    try (KvCache cache = KvCache.builder(GEOMETRY).method(PmKvq.floor(2)).budgetBytes(BUDGET).build();
        KvSequence sequence = cache.newSequence()) {
      long exact = 0;
      try {
        while (true) {
          sequence.reserve(CHUNK); // room in all layers, or no step
          for (int layer = 0; layer < GEOMETRY.layers(); layer++) {
            sequence.append(layer, rows(random), rows(random), CHUNK);
          }
          if (cache.stats().total().shrinks().count() == 0) {
            exact = sequence.length();
          }
        }
      } catch (BudgetExceededException full) {
        System.out.printf(
            "LongSession: %d tokens in 16 bits, %d in %.1f bits, then a step needed %d bytes and %d were left%n",
            exact, sequence.length(), cache.stats().total().bitsPerElement(), full.bytesNeeded(), full.bytesLeft());
      }
      float[] output = new float[GEOMETRY.querySize(0)];
      sequence.attend(0, new float[GEOMETRY.querySize(0)], output); // the session can still be used
      if (sequence.length() < 4 * exact || cache.stats().bytes() > BUDGET) {
        throw new AssertionError("the budget should hold more tokens");
      }
    }
  }

  private static float[] rows(Random random) {
    float[] numbers = new float[CHUNK * GEOMETRY.rowSize(0)];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] = (float) random.nextGaussian();
    }
    return numbers;
  }
}
