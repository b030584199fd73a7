import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.method.Uniform;
import dev.kvasir.prefix.PrefixCache;
import dev.kvasir.prefix.PrefixMatch;
import dev.kvasir.prefix.PrefixRequest;
import dev.kvasir.prefix.Tenant;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Random;

/**
 * Two tenants with one system prompt. The second reads only what is its own; after a restart, both find what they had in a
 * folder.
 */
public final class SharedPrefix {

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(2).queryHeads(8).kvHeads(2).headDim(64).build();
  private static final int SYSTEM = 1000;
  private static final int QUESTION = 300;

  public static void main(String[] args) throws IOException {
    Path folder = Files.createTempDirectory("prefixes");
    int first = serve(folder, "ann", 1);
    int second = serve(folder, "bob", 2);
    int again = serve(folder, "ann", 1);
    System.out.printf(
        "SharedPrefix: of %d tokens, %d were known to the first, %d to another tenant, %d to the first when it came back%n",
        SYSTEM + QUESTION, first, second, again);
    if (first != 0 || second < SYSTEM - 128 || second > SYSTEM || again <= SYSTEM) {
      throw new AssertionError("prefixes are not what they should be");
    }
  }

  /** A process that serves one request. Returns how many tokens it need not read. */
  private static int serve(Path folder, String tenant, int question) throws IOException {
    int[] tokens = new int[SYSTEM + QUESTION];
    for (int i = 0; i < tokens.length; i++) {
      tokens[i] = i < SYSTEM ? i : 1000 * question + i;
    }
    PrefixRequest request = PrefixRequest.of(tokens).tenant(Tenant.of(tenant, new byte[0])).shared(SYSTEM);
    try (KvCache cache = KvCache.builder(GEOMETRY).method(Uniform.bits(2)).build();
        PrefixCache prefixes = PrefixCache.builder(cache).folder(folder, 1L << 30).build();
        PrefixMatch match = prefixes.lookup(request)) {
      read(match.sequence(), tokens, match.reusedTokens());
      prefixes.publish(match.sequence(), request).join();
      return match.reusedTokens();
    }
  }

  /** Stands for a model: the rows of a token go by the token. */
  private static void read(KvSequence sequence, int[] tokens, int from) {
    int row = GEOMETRY.rowSize(0);
    for (int layer = 0; layer < GEOMETRY.layers(); layer++) {
      float[] keys = new float[(tokens.length - from) * row];
      float[] values = new float[keys.length];
      for (int i = from; i < tokens.length; i++) {
        Random random = new Random(31L * tokens[i] + layer);
        for (int j = 0; j < row; j++) {
          keys[(i - from) * row + j] = (float) random.nextGaussian();
          values[(i - from) * row + j] = (float) random.nextGaussian();
        }
      }
      sequence.append(layer, keys, values, tokens.length - from);
    }
  }
}
