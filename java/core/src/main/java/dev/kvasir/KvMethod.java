package dev.kvasir;

/**
 * A recipe for compression: which codec stores the keys and the values of each layer, and how many tokens stay in 16
 * bits.
 *
 * <p>{@link HalfPrecision}, {@link Uniform} and {@link PatternKv} are ready-made; an implementation of one's own may
 * mix codecs and widths by layer. Instances should be immutable; a cache asks once, when it is built.
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
   * @return the choice
   */
  CodecChoice keys(int layer);

  /**
   * The codec of a layer's values.
   *
   * @param layer 0 .. layers-1
   * @return the choice
   */
  CodecChoice values(int layer);

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
   * other ("attention sinks"). 0 is the default.
   *
   * @return 0..4096
   */
  default int sinks() {
    return 0;
  }
}
