import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.calibrate.AttentionSample;
import dev.kvasir.calibrate.KeyScaling;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.util.List;
import java.util.Random;

/**
 * Calibration: a few texts of a model whose keys have channels of very different sizes show how to scale them, so that PM-KVQ's
 * pages, quantised token by token, lose little of the small ones. Random numbers stand in for the model's.
 */
public final class Calibration {

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(4).kvHeads(2).headDim(64).build();
  private static final int TOKENS = 512;

  public static void main(String[] args) {
    Rope rope = Rope.plain(RopePairs.HALVES, 10000, 64);
    List<AttentionSample> texts = List.of(text(1), text(2));
    KeyScaling scaling = KeyScaling.calibrate(GEOMETRY, KeyScaling.Options.of(rope), layer -> texts);
    PmKvq method = PmKvq.floor(4).startBits(4).keyAxis(PmKvq.KeyAxis.TOKEN);
    AttentionSample unseen = text(3);
    double plain = error(method, unseen);
    double scaled = error(scaling.applyTo(method), unseen);
    System.out.printf(
        "Calibration: 4 bits cost attention %.3f of its size, %.3f with keys scaled by alpha %.2f%n",
        plain, scaled, scaling.alpha(0));
    if (!(scaled < plain)) {
      throw new AssertionError("calibration should help");
    }
  }

  /** The error of the last token's attention beside 16 bits. */
  private static double error(KvMethod method, AttentionSample text) {
    float[] got = attend(method, text);
    float[] wanted = attend(Uniform.bits(16), text);
    double difference = 0;
    double size = 0;
    for (int i = 0; i < got.length; i++) {
      difference += Math.pow(got[i] - wanted[i], 2);
      size += Math.pow(wanted[i], 2);
    }
    return Math.sqrt(difference / size);
  }

  private static float[] attend(KvMethod method, AttentionSample text) {
    float[] output = new float[GEOMETRY.querySize(0)];
    try (KvCache cache = KvCache.builder(GEOMETRY).method(method).build(); KvSequence sequence = cache.newSequence()) {
      sequence.append(0, text.keys(), text.values(), text.tokens());
      sequence.attend(0, text.lastQueries(1).queries(), output);
    }
    return output;
  }

  /** Channels 5 and 37 of each head, which RoPE turns together, are twenty times as large as the others. */
  private static AttentionSample text(long seed) {
    Random random = new Random(seed);
    float[] keys = numbers(random, TOKENS * GEOMETRY.rowSize(0));
    for (int i = 0; i < keys.length; i++) {
      if (i % 32 == 5) {
        keys[i] *= 20;
      }
    }
    float[] values = numbers(random, keys.length);
    float[] queries = numbers(random, 64 * GEOMETRY.querySize(0));
    for (int i = 0; i < queries.length; i++) {
      queries[i] *= i % 32 == 5 ? 0.05f : 1;
    }
    return new AttentionSample(TOKENS, keys, true, values, 64, queries, true);
  }

  private static float[] numbers(Random random, int count) {
    float[] numbers = new float[count];
    for (int i = 0; i < count; i++) {
      numbers[i] = (float) random.nextGaussian();
    }
    return numbers;
  }
}
