package dev.kvasir.calibrate;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.internal.Checks;

/** What a page costs: the bytes that a codec takes for 128 tokens, parameters included. */
@FunctionalInterface
public interface PageCost {

  /**
   * Bytes of one side of one page of a layer, all its kv heads together.
   *
   * @param layer 0 .. layers-1
   * @param side keys or values
   * @param bits bits per element
   * @return 1 or more
   */
  long bytes(int layer, Side side, int bits);

  /**
   * The cost of quantising per token in groups of 128 channels, or of all channels of a head that has fewer: what
   * PM-KVQ stores. Its keys per channel take as much, or less where a head has fewer channels than a page has tokens.
   *
   * @param geometry the model
   * @return the cost
   */
  static PageCost perToken(KvGeometry geometry) {
    return perToken(geometry, 128);
  }

  /**
   * The cost of quantising per token: for each kv head, a float16 minimum and range per token and group, and the codes,
   * both padded to multiples of 64 bytes.
   *
   * @param geometry the model
   * @param group channels that share parameters; the last group of a head may have fewer
   * @return the cost
   * @throws IllegalArgumentException if the group is not positive
   */
  static PageCost perToken(KvGeometry geometry, int group) {
    Checks.require(group >= 1, "a group of " + group + " channels");
    return (layer, side, bits) -> {
      Checks.require(bits >= 1 && bits <= 16, bits + " bits, not 1..16");
      long channels = geometry.headDim(layer);
      long groups = (channels + group - 1) / group;
      long parameters = 4 * groups * KvCache.PAGE_TOKENS;
      long codes = (channels * KvCache.PAGE_TOKENS * bits + 7) / 8;
      return geometry.kvHeads(layer) * ((parameters + 63) / 64 * 64 + (codes + 63) / 64 * 64);
    };
  }
}
