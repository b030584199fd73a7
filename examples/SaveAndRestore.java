import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.error.KvFileException;
import dev.kvasir.method.Uniform;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Random;

/** A sequence is saved, and a later process goes on with it, to the bit. A file of another kind of cache is refused. */
public final class SaveAndRestore {

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(2).queryHeads(8).kvHeads(2).headDim(64).build();
  private static final int TOKENS = 500;

  public static void main(String[] args) throws IOException {
    Path file = Files.createTempDirectory("sequences").resolve("chat.kv");
    float[] query = numbers(GEOMETRY.querySize(0));
    float[] before = new float[query.length];
    float[] after = new float[query.length];
    try (KvCache cache = cache(2); KvSequence sequence = cache.newSequence()) {
      for (int layer = 0; layer < GEOMETRY.layers(); layer++) {
        float[] rows = numbers(TOKENS * GEOMETRY.rowSize(layer));
        sequence.append(layer, rows, rows, TOKENS);
      }
      sequence.save(file);
      sequence.attend(1, query, before);
    }
    try (KvCache cache = cache(2); KvSequence sequence = cache.restore(file)) {
      sequence.attend(1, query, after);
    }
    String refusal = "";
    try (KvCache cache = cache(4)) {
      cache.restore(file).close();
    } catch (KvFileException e) {
      refusal = e.getMessage();
    }
    System.out.printf("SaveAndRestore: %d tokens in %d bytes, the same attention afterwards%n", TOKENS, Files.size(file));
    if (!Arrays.equals(before, after) || refusal.isEmpty()) {
      throw new AssertionError("a restored sequence must be what was saved, and nothing else");
    }
    Files.delete(file);
  }

  private static KvCache cache(int bits) {
    return KvCache.builder(GEOMETRY).method(Uniform.bits(bits)).build();
  }

  private static float[] numbers(int count) {
    Random random = new Random(5);
    float[] numbers = new float[count];
    for (int i = 0; i < count; i++) {
      numbers[i] = (float) random.nextGaussian();
    }
    return numbers;
  }
}
