package dev.kvasir.commvq;

import dev.kvasir.NotFiniteException;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.commvq.NativeValueCodebook;
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

  /**
   * Encodes values without an encoder: bits by the thresholds, then flipped one by one while that lowers the error.
   *
   * @param rows {@code [tokens][kvHeads][headDim]}
   * @param tokens 1 or more
   * @return bits and gains
   * @throws IllegalArgumentException if the array is too short
   * @throws NotFiniteException if an element is NaN, infinite or above 32752 in magnitude
   */
  public EncodedValues encode(float[] rows, int tokens) {
    int elements = Checks.rows("rows", rows, tokens, width);
    byte[] bits = new byte[bytes(tokens)];
    short[] gains = new short[tokens];
    codebook.encode(rows, tokens, elements, bits, gains);
    return new EncodedValues(tokens, bits, gains);
  }

  /**
   * Encodes values with an encoder.
   *
   * @param rows {@code [tokens][kvHeads][headDim]}
   * @param tokens 1 or more
   * @param encoder of the same width and codes
   * @param flips most bits of a token that are flipped afterwards, one by one, while that lowers the error; 0 or more
   * @return bits and gains
   * @throws IllegalArgumentException if the array is too short, or the encoder is for another codebook
   * @throws NotFiniteException if an element is NaN, infinite or above 32752 in magnitude
   */
  public EncodedValues encode(float[] rows, int tokens, ValueEncoder encoder, int flips) {
    if (encoder.width() != width || encoder.codes() != codes) {
      throw new IllegalArgumentException(
          "an encoder of " + encoder.width() + " channels and " + encoder.codes() + " codes for a codebook of " + width
              + " and " + codes);
    }
    int elements = Checks.rows("rows", rows, tokens, width);
    byte[] bits = encoder.encode(rows, tokens);
    short[] gains = new short[tokens];
    codebook.refine(rows, tokens, elements, flips, bits, gains);
    return new EncodedValues(tokens, bits, gains);
  }

  /**
   * Decodes values.
   *
   * @param values what {@link #encode} returned, or its like
   * @return {@code [tokens][kvHeads][headDim]}
   * @throws IllegalArgumentException if bits or gains have another size than so many tokens need
   * @throws NotFiniteException if a gain is not finite
   */
  public float[] decode(EncodedValues values) {
    Checks.requirePositive("tokens", values.tokens());
    int bytes = bytes(values.tokens());
    if (values.bits().length != bytes || values.gains().length != values.tokens()) {
      throw new IllegalArgumentException(
          values.bits().length + " bytes of bits and " + values.gains().length + " gains, not " + bytes + " and "
              + values.tokens() + ", for " + values.tokens() + " tokens");
    }
    float[] rows = new float[Math.toIntExact(Checks.product(values.tokens(), width))];
    codebook.decode(values.bits(), values.gains(), values.tokens(), rows);
    return rows;
  }

  private int bytes(int tokens) {
    return Math.toIntExact(Checks.product(tokens, codes / 8));
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
