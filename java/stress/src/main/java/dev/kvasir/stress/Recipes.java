package dev.kvasir.stress;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.ShrinkPolicy;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.codebook.KeyCodebook;
import dev.kvasir.codebook.ValueCodebook;
import dev.kvasir.method.CommVq;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.Mixed;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.util.List;
import java.util.Random;

/** Every method, with options of all kinds. */
final class Recipes {

  /** Tokens of the longest window. */
  static final int MAX_WINDOW = 200;

  private Recipes() {}

  /**
   * All methods in their plain form.
   *
   * @param geometry whose layers are alike
   * @param random for codebooks, which are noise: speed and sizes are those of trained ones
   * @return one of each
   */
  static List<KvMethod> all(KvGeometry geometry, Random random) {
    return List.of(
        new HalfPrecision(),
        Uniform.bits(2),
        Uniform.bits(3),
        Uniform.bits(4),
        PatternKv.bits(2),
        PmKvq.floor(2),
        MixKvq.budget(2.7),
        commVq(geometry, random),
        Mixed.of(MixKvq.budget(2.7), PatternKv.bits(2)));
  }

  /** A method picked at random, with options picked at random. */
  static KvMethod any(KvGeometry geometry, Random random) {
    int window = random.nextBoolean() ? 0 : random.nextInt(MAX_WINDOW);
    int sinks = random.nextBoolean() ? 4 : random.nextInt(150);
    int[] widths = {1, 2, 3, 4, 8};
    int bits = widths[random.nextInt(widths.length)];
    switch (random.nextInt(8)) {
      case 0:
        return new HalfPrecision();
      case 1:
        return Uniform.bits(bits).window(window).sinks(sinks);
      case 2:
        return Uniform.bits(bits).keyGroup(32).valueGroup(32).keyBits(4).window(window).sinks(sinks);
      case 3:
        return PatternKv.bits(bits).patterns(2 + random.nextInt(40)).window(window).sinks(sinks);
      case 4:
        ShrinkPolicy policy = random.nextBoolean() ? ShrinkPolicy.LAYER : ShrinkPolicy.OLDEST;
        return PmKvq.floor(2 << random.nextInt(3)).policy(policy).window(window).sinks(sinks);
      case 5:
        return MixKvq.budget(2 + 3 * random.nextDouble()).window(window).sinks(sinks);
      case 6:
        return commVq(geometry, random).window(window).sinks(sinks);
      default:
        return Mixed.of(Uniform.bits(bits), PatternKv.bits(bits)).window(window).sinks(sinks);
    }
  }

  /** Whether sealed pages may change later: where a budget takes their bits away. */
  static boolean shrinks(KvMethod method) {
    return method instanceof PmKvq;
  }

  /** CommVQ with codebooks of noise. */
  private static CommVq commVq(KvGeometry geometry, Random random) {
    CommVqCodebooks.Builder codebooks = CommVqCodebooks.builder(geometry);
    int heads = geometry.kvHeads(0);
    int dim = geometry.headDim(0);
    float[] tables = gaussian(random, heads * 2 * 64 * dim, 0.5);
    float[] table = gaussian(random, heads * dim * 32, 0.5);
    for (int layer = 0; layer < geometry.layers(); layer++) {
      codebooks.keys(layer, new KeyCodebook(heads, dim, RopePairs.HALVES, 2, 64, tables));
      codebooks.values(layer, new ValueCodebook(heads * dim, 32, table, null));
    }
    return CommVq.of(codebooks.build(), Rope.plain(RopePairs.HALVES, 10000, dim));
  }

  /** Normally distributed numbers. */
  static float[] gaussian(Random random, int count, double scale) {
    float[] data = new float[count];
    for (int i = 0; i < count; i++) {
      data[i] = (float) (scale * random.nextGaussian());
    }
    return data;
  }
}
