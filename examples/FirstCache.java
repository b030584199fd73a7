import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.method.Uniform;
import java.util.Random;

/** The first program: a cache of 4 bits, a prompt, a step, and what it all takes. Random numbers stand in for a model's. */
public final class FirstCache {

  private static final int PROMPT = 1000;

  public static void main(String[] args) {
    KvGeometry geometry = KvGeometry.builder().layers(4).queryHeads(8).kvHeads(2).headDim(128).build();
    try (KvCache cache = KvCache.builder(geometry).method(Uniform.bits(4)).build();
        KvSequence sequence = cache.newSequence()) {
      Random random = new Random(1);
      float[] output = new float[geometry.querySize(0)];
      for (int layer = 0; layer < geometry.layers(); layer++) {
        float[] keys = numbers(random, PROMPT * geometry.rowSize(layer)); // after RoPE
        float[] values = numbers(random, PROMPT * geometry.rowSize(layer));
        sequence.append(layer, keys, values, PROMPT);
        sequence.attend(layer, numbers(random, geometry.querySize(layer)), output); // of the newest token
      }
      double bits = cache.stats().total().bitsPerElement();
      System.out.printf(
          "FirstCache: %d tokens in %d KB, %.2f bits an element%n", sequence.length(), cache.stats().bytes() / 1000, bits);
      if (sequence.length() != PROMPT || !(bits < 8)) {
        throw new AssertionError("that is not a compressed cache");
      }
    }
  }

  private static float[] numbers(Random random, int count) {
    float[] numbers = new float[count];
    for (int i = 0; i < count; i++) {
      numbers[i] = (float) random.nextGaussian();
    }
    return numbers;
  }
}
