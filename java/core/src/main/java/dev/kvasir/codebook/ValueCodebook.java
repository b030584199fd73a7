package dev.kvasir.codebook;

import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.codebook.NativeValueCodebook;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * The codebook of one layer's values: the value of a token, all kv heads together, is its gain times the sum of the rows
 * whose bits are set.
 *
 * <p>As many codes as there are channels in all kv heads make 1 bit per element; twice as many make 2.
 */
public final class ValueCodebook {

  private final int width;
  private final int codes;
  private final NativeValueCodebook codebook;

  /**
   * Makes a codebook from its rows.
   *
   * @param width kvHeads times headDim, a multiple of 16 in 16..65536
   * @param codes a multiple of 16 in 16..16384
   * @param table {@code [codes][width]}; rounded to float16
   * @param thresholds {@code [codes]}: how much of a row must be left of a value for the row's bit to be set, by encoding
   *     without an encoder; null for one half everywhere
   * @throws IllegalArgumentException if a number is out of range or an array has another size
   * @throws NotFiniteException if an element fits no float16
   */
  public ValueCodebook(int width, int codes, float[] table, float @Nullable [] thresholds) {
    long size = Checks.product(width, codes);
    if (table.length != size || thresholds != null && thresholds.length != codes) {
      throw new IllegalArgumentException(
          "a table of " + table.length + " elements"
              + (thresholds == null ? "" : " with " + thresholds.length + " thresholds")
              + " for " + codes + " codes and " + width + " channels");
    }
    this.width = width;
    this.codes = codes;
    this.codebook = new NativeValueCodebook(width, codes, table, thresholds);
  }

  NativeValueCodebook nativeCodebook() {
    return codebook;
  }

  /**
   * The channels of all kv heads together.
   *
   * @return kvHeads times headDim
   */
  public int width() {
    return width;
  }

  /**
   * The rows, and the bits of a token.
   *
   * @return a multiple of 16
   */
  public int codes() {
    return codes;
  }

  /**
   * Bits of a stored value per element: bits and gain, without the codebook.
   *
   * @return for example 1.02 with 1024 codes for 1024 channels
   */
  public double bitsPerElement() {
    return (codes + 16.0) / width;
  }

  /**
   * The rows.
   *
   * @return a new array, {@code [codes][width]}
   */
  public float[] table() {
    float[] table = new float[codes * width];
    codebook.readTable(table);
    return table;
  }

  /**
   * The thresholds of encoding without an encoder.
   *
   * @return a new array, {@code [codes]}
   */
  public float[] thresholds() {
    float[] thresholds = new float[codes];
    codebook.readThresholds(thresholds);
    return thresholds;
  }

  @Override
  public boolean equals(@Nullable Object other) {
    return other instanceof ValueCodebook that
        && width == that.width
        && codes == that.codes
        && Arrays.equals(table(), that.table())
        && Arrays.equals(thresholds(), that.thresholds());
  }

  @Override
  public int hashCode() {
    return 31 * width + codes;
  }

  @Override
  public String toString() {
    return "ValueCodebook[" + codes + " codes for " + width + " channels]";
  }
}
