package dev.kvasir.commvq;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.Side;
import dev.kvasir.internal.commvq.LayerModel;
import dev.kvasir.internal.commvq.TrainedMethod;
import java.util.Objects;

/**
 * CommVQ: keys and values by trained codebooks, at 1 or 2 bits.
 *
 * <pre>{@code
 * CommVqCodebooks codebooks = CommVqCodebooks.of(Profile.load(path, geometry));
 * Rope rope = Rope.plain(RopePairs.HALVES, 500000, 128);
 * KvCache cache = KvCache.builder(geometry).method(CommVq.of(codebooks, rope)).build();
 * }</pre>
 *
 * <p>Keys are appended <b>before</b> RoPE; the cache applies it by position, so that {@link
 * dev.kvasir.KvSequence#shift} can move a sequence for free. Queries come after RoPE, as with every method. A side without
 * a codebook is kept in 16 bits.
 *
 * @param codebooks of every layer
 * @param rope of the model
 * @param refinements how often the stages of a key are revisited, 0..100; see {@link KeyCodebook#encode}
 * @param flips how many bits of an encoder a value may change; see {@link ValueCodebook#encode(float[], int,
 *     ValueEncoder, int)}
 * @param window see {@link KvMethod#window}
 * @param sinks see {@link KvMethod#sinks}
 */
public record CommVq(CommVqCodebooks codebooks, Rope rope, int refinements, int flips, int window, int sinks)
    implements TrainedMethod {

  /**
   * Checks the numbers, and that the codebooks are for this RoPE.
   *
   * @param codebooks of every layer
   * @param rope of the model
   * @param refinements how often the stages of a key are revisited
   * @param flips how many bits of an encoder a value may change
   * @param window see {@link KvMethod#window}
   * @param sinks see {@link KvMethod#sinks}
   * @throws IllegalArgumentException for a number out of range, or where RoPE and codebooks do not fit each other
   */
  public CommVq {
    Objects.requireNonNull(codebooks, "codebooks");
    Objects.requireNonNull(rope, "rope");
    if (refinements < 0 || refinements > 100 || flips < 0 || window < 0 || sinks < 0) {
      throw new IllegalArgumentException(
          "refinements is " + refinements + ", flips " + flips + ", window " + window + ", sinks " + sinks);
    }
    KvGeometry geometry = codebooks.geometry();
    for (int layer = 0; layer < geometry.layers(); layer++) {
      if (geometry.headDim(layer) != rope.headDim()) {
        throw new IllegalArgumentException(
            "RoPE for " + rope.headDim() + " channels, layer " + layer + " has " + geometry.headDim(layer));
      }
      RopePairsCheck.require(codebooks, rope, layer);
    }
  }

  /**
   * With one revisit of a key's stages, up to 16 flips after an encoder, no sinks and the smallest window.
   *
   * @param codebooks of every layer
   * @param rope of the model
   * @return the method
   */
  public static CommVq of(CommVqCodebooks codebooks, Rope rope) {
    return new CommVq(codebooks, rope, 1, 16, 0, 0);
  }

  /**
   * This method with another number of revisits.
   *
   * @param times 0..100
   * @return a new method
   */
  public CommVq refinements(int times) {
    return new CommVq(codebooks, rope, times, flips, window, sinks);
  }

  /**
   * This method with another limit of flips.
   *
   * @param bits 0 or more
   * @return a new method
   */
  public CommVq flips(int bits) {
    return new CommVq(codebooks, rope, refinements, bits, window, sinks);
  }

  /**
   * This method with another window.
   *
   * @param tokens see {@link KvMethod#window}
   * @return a new method
   */
  public CommVq window(int tokens) {
    return new CommVq(codebooks, rope, refinements, flips, tokens, sinks);
  }

  /**
   * This method with another number of sinks.
   *
   * @param tokens see {@link KvMethod#sinks}
   * @return a new method
   */
  public CommVq sinks(int tokens) {
    return new CommVq(codebooks, rope, refinements, flips, window, tokens);
  }

  @Override
  public String name() {
    return "commvq-k" + keys(0).bits() + "v" + values(0).bits();
  }

  /**
   * For the library itself: what the codebooks of one side weigh.
   *
   * @param side the side
   * @return bytes
   */
  @Override
  public long codebookBytes(Side side) {
    return codebooks.bytes(side);
  }

  @Override
  public boolean keysBeforeRope() {
    return true;
  }

  @Override
  public CodecChoice keys(int layer) {
    return codebooks
        .keys(layer)
        .map(keys -> trained(2.0 * keys.stages() * Integer.numberOfTrailingZeros(keys.entries()) / keys.headDim()))
        .orElse(CodecChoice.of("f16", 16));
  }

  @Override
  public CodecChoice values(int layer) {
    return codebooks
        .values(layer)
        .map(values -> trained((double) values.codes() / values.width()))
        .orElse(CodecChoice.of("f16", 16));
  }

  /**
   * For the library itself: what a cache is built from.
   *
   * @param layer 0 .. layers-1
   * @return the codebooks as native objects
   */
  @Override
  public LayerModel model(int layer) {
    return new LayerModel(
        rope.pairs().ordinal(),
        rope.frequencies(),
        rope.attentionFactor(),
        codebooks.keys(layer).map(KeyCodebook::nativeCodebook).orElse(null),
        refinements,
        codebooks.values(layer).map(ValueCodebook::nativeCodebook).orElse(null),
        codebooks.encoder(layer).map(ValueEncoder::nativeEncoder).orElse(null),
        flips);
  }

  private static CodecChoice trained(double bits) {
    return CodecChoice.of("commvq", (int) Math.max(1, Math.round(bits)));
  }

  /** Codebooks of keys know which channels belong together. */
  private static final class RopePairsCheck {
    static void require(CommVqCodebooks codebooks, Rope rope, int layer) {
      codebooks
          .keys(layer)
          .filter(keys -> keys.pairs() != rope.pairs())
          .ifPresent(
              keys -> {
                throw new IllegalArgumentException(
                    "layer " + layer + " has a key codebook for " + keys.pairs() + ", RoPE is " + rope.pairs());
              });
    }
  }
}
