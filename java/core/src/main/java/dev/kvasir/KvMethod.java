package dev.kvasir;

import java.util.EnumSet;
import java.util.Optional;
import java.util.Set;

/**
 * A recipe for compression: which codec stores the keys and the values of each layer, and how many tokens stay in 16
 * bits.
 *
 * <p>The package {@code dev.kvasir.method} has those that are ready-made, {@link dev.kvasir.preset.Preset} recipes that
 * were measured; an implementation of one's own may mix codecs and widths by layer. Instances should be immutable; a
 * cache asks once, when it is built.
 */
public interface KvMethod {

  /**
   * A short name for logs and tables.
   *
   * @return the name
   */
  String name();

  /**
   * The codec of a layer's keys.
   *
   * @param layer 0 .. layers-1
   * @return the choice; 16 bits unless the method says otherwise
   */
  default CodecChoice keys(int layer) {
    return CodecChoice.of("f16", 16);
  }

  /**
   * The codec of a layer's values.
   *
   * @param layer 0 .. layers-1
   * @return the choice; 16 bits unless the method says otherwise
   */
  default CodecChoice values(int layer) {
    return CodecChoice.of("f16", 16);
  }

  /**
   * The least number of newest tokens that stay in 16 bits. With 0, the default, they are 0..127: pages of 128 tokens
   * are compressed as soon as they are full.
   *
   * @return 0..65536
   */
  default int window() {
    return 0;
  }

  /**
   * How many of a sequence's first tokens stay in 16 bits for ever. Models lean on the first tokens more than on any
   * other ("attention sinks"), whose keys and values are unlike all others and spoil the page that they are in. Methods of
   * this library keep 4 unless told otherwise; 0 is the default of the interface.
   *
   * @return 0..4096
   */
  default int sinks() {
    return 0;
  }

  /**
   * Which pages give up bits first where a budget runs out. Matters to codecs whose pages can shrink.
   *
   * @return the policy
   */
  default ShrinkPolicy shrinkPolicy() {
    return ShrinkPolicy.OLDEST;
  }

  /**
   * Whether keys are to be appended before RoPE, which the cache then applies itself. Queries always come after it.
   *
   * @return false unless the method says otherwise
   */
  default boolean keysBeforeRope() {
    return false;
  }

  /**
   * Factors that keys are divided by when they are stored, and queries multiplied by, so that scores stay what they are
   * while large channels no longer spoil the others' precision. Both channels of a RoPE pair have one factor. {@code
   * KeyScaling} finds them from sample tensors.
   *
   * @param layer 0 .. layers-1
   * @return {@code [kvHeads][headDim]}, positive numbers; or an empty array, the default, for none
   */
  default float[] keyScaling(int layer) {
    return new float[0];
  }

  /**
   * What must be given for the method to do what it promises.
   *
   * @return {@link Need#KEYS_BEFORE_ROPE} if {@link #keysBeforeRope}, else nothing, unless the method says otherwise
   */
  default Set<Need> needs() {
    return keysBeforeRope() ? EnumSet.of(Need.KEYS_BEFORE_ROPE) : EnumSet.noneOf(Need.class);
  }

  /**
   * This method for keys that are scaled: what {@code KeyScaling.applyTo} scales.
   *
   * @return this method, unless it does better with scaled keys in some other way
   */
  default KvMethod forScaledKeys() {
    return this;
  }

  /** What a cache must know of the codebook of one side of one layer. Only the library makes it and looks into it. */
  interface Codebook {}

  /**
   * The codebook of a layer's keys or values, for codecs that need one. A method that wraps another passes on what that
   * one has.
   *
   * @param layer 0 .. layers-1
   * @param side keys or values
   * @return the codebook; empty unless the method says otherwise
   */
  default Optional<Codebook> codebook(int layer, Side side) {
    return Optional.empty();
  }

  /**
   * What the codebooks of one side weigh, those of all layers together.
   *
   * @param side keys or values
   * @return bytes; 0 unless the method brings any
   */
  default long codebookBytes(Side side) {
    return 0;
  }

  /**
   * Bytes that all sequences share and no {@link KvStats} counts: codebooks. They weigh little where a cache is large, and
   * much where it is small.
   *
   * @return 0 unless the method brings any
   */
  default long codebookBytes() {
    return codebookBytes(Side.KEYS) + codebookBytes(Side.VALUES);
  }
}
