package dev.kvasir.calibrate;

import dev.kvasir.Side;
import dev.kvasir.internal.Checks;
import java.util.List;

/**
 * How many bits each layer's keys and values get: what {@link BitAllocator} found.
 *
 * @param keyBits bits of a key element, by layer
 * @param valueBits bits of a value element, by layer
 * @param objective the sum of the sensitivities at these widths
 * @param bytes bytes of the pages at these widths, parameters included
 * @param budgetBytes what they had to fit in
 * @param optimal whether it is proven that no plan within the budget has a lower objective
 */
public record BitPlan(
    List<Integer> keyBits, List<Integer> valueBits, double objective, long bytes, long budgetBytes, boolean optimal) {

  /**
   * Copies the lists.
   *
   * @param keyBits bits of a key element, by layer
   * @param valueBits bits of a value element, by layer
   * @param objective the sum of the sensitivities at these widths
   * @param bytes bytes of the pages at these widths, parameters included
   * @param budgetBytes what they had to fit in
   * @param optimal whether it is proven that no plan within the budget has a lower objective
   * @throws IllegalArgumentException if there is no layer, the lists differ in length, a width is not 1..16, the
   *     objective is negative or not finite, or the bytes are negative or above the budget
   */
  public BitPlan {
    keyBits = List.copyOf(keyBits);
    valueBits = List.copyOf(valueBits);
    Checks.require(
        !keyBits.isEmpty() && keyBits.size() == valueBits.size(),
        "key widths for " + keyBits.size() + " layers, value widths for " + valueBits.size());
    for (List<Integer> widths : List.of(keyBits, valueBits)) {
      for (int width : widths) {
        Checks.require(width >= 1 && width <= 16, "a width of " + width + " bits, not 1..16");
      }
    }
    Checks.require(objective >= 0 && objective < Double.POSITIVE_INFINITY, "an objective of " + objective);
    Checks.require(bytes >= 0 && bytes <= budgetBytes, bytes + " bytes in a budget of " + budgetBytes);
  }

  /**
   * The number of layers.
   *
   * @return 1 or more
   */
  public int layers() {
    return keyBits.size();
  }

  /**
   * The width of one side of one layer.
   *
   * @param layer 0 .. layers-1
   * @param side keys or values
   * @return bits per element
   * @throws IllegalArgumentException if there is no such layer
   */
  public int bits(int layer, Side side) {
    return (side == Side.KEYS ? keyBits : valueBits).get(Checks.layer(layer, layers()));
  }

  /**
   * What the budget has left.
   *
   * @return bytes
   */
  public long slackBytes() {
    return budgetBytes - bytes;
  }
}
