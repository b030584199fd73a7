package dev.kvasir.method;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.Need;
import dev.kvasir.Side;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.codebook.KeyCodebook;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Records;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.util.EnumSet;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;

/**
 * CommVQ: keys and values by trained codebooks, at 1 or 2 bits.
 *
 * <pre>{@code
 * CommVqCodebooks codebooks = Profile.load(path, geometry).codebooks();
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
 * @param refinements how often all stages of a key are revisited, 0..100; more never raises the error
 * @param flips most bits of an encoder that a value changes, one by one, while that lowers the error; 0 or more
 * @param window see {@link KvMethod#window}
 * @param sinks see {@link KvMethod#sinks}
 */
public record CommVq(CommVqCodebooks codebooks, Rope rope, int refinements, int flips, int window, int sinks)
    implements KvMethod {

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
    Checks.require(refinements >= 0 && refinements <= 100, "refinements", refinements, "0..100");
    Checks.requireNotNegative("flips", flips);
    Checks.requireNotNegative("window", window);
    Checks.requireNotNegative("sinks", sinks);
    KvGeometry geometry = codebooks.geometry();
    for (int layer = 0; layer < geometry.layers(); layer++) {
      Checks.require(
          geometry.headDim(layer) == rope.headDim(),
          "RoPE for " + rope.headDim() + " channels, layer " + layer + " has " + geometry.headDim(layer));
      RopePairs trained = codebooks.keys(layer).map(KeyCodebook::pairs).orElse(rope.pairs());
      Checks.require(
          trained == rope.pairs(),
          "layer " + layer + " has a key codebook for " + trained + ", RoPE is " + rope.pairs());
    }
  }

  /**
   * With one revisit of a key's stages, up to 16 flips after an encoder, 4 sinks and the smallest window.
   *
   * @param codebooks of every layer
   * @param rope of the model
   * @return the method
   */
  public static CommVq of(CommVqCodebooks codebooks, Rope rope) {
    return new CommVq(codebooks, rope, 1, 16, 0, Sinks.DEFAULT);
  }

  /**
   * This method with another number of revisits.
   *
   * @param times 0..100
   * @return a new method
   */
  public CommVq refinements(int times) {
    return Records.with(this, "refinements", times);
  }

  /**
   * This method with another limit of flips.
   *
   * @param bits 0 or more
   * @return a new method
   */
  public CommVq flips(int bits) {
    return Records.with(this, "flips", bits);
  }

  /**
   * This method with another window.
   *
   * @param tokens see {@link KvMethod#window}
   * @return a new method
   */
  public CommVq window(int tokens) {
    return Records.with(this, "window", tokens);
  }

  /**
   * This method with another number of sinks.
   *
   * @param tokens see {@link KvMethod#sinks}
   * @return a new method
   */
  public CommVq sinks(int tokens) {
    return Records.with(this, "sinks", tokens);
  }

  @Override
  public String name() {
    return "commvq-k" + keys(0).bits() + "v" + values(0).bits();
  }

  @Override
  public Optional<Codebook> codebook(int layer, Side side) {
    return codebooks.forCache(layer, side, rope, refinements, flips);
  }

  @Override
  public long codebookBytes(Side side) {
    return codebooks.bytes(side);
  }

  @Override
  public Set<Need> needs() {
    return EnumSet.of(Need.KEYS_BEFORE_ROPE, Need.CODEBOOKS);
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
        .orElse(KvMethod.super.keys(layer));
  }

  @Override
  public CodecChoice values(int layer) {
    return codebooks
        .values(layer)
        .map(values -> trained((double) values.codes() / values.width()))
        .orElse(KvMethod.super.values(layer));
  }

  private static CodecChoice trained(double bits) {
    return CodecChoice.of("commvq", (int) Math.max(1, Math.round(bits)));
  }
}
