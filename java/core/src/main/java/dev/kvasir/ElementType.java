package dev.kvasir;

/** What elements look like in memory. */
public enum ElementType {
  /** IEEE 754 binary32. */
  FLOAT32(0, Float.BYTES),
  /** IEEE 754 binary16: 5 bits of exponent, 10 of fraction. */
  FLOAT16(1, Short.BYTES),
  /** The upper half of a {@code float}: 8 bits of exponent, 7 of fraction. Rounded to float16 by an append. */
  BFLOAT16(2, Short.BYTES);

  private final int code;
  private final int bytes;

  ElementType(int code, int bytes) {
    this.code = code;
    this.bytes = bytes;
  }

  /**
   * The number that native code knows it by, for good.
   *
   * @return the code
   */
  public int code() {
    return code;
  }

  /**
   * The size of an element.
   *
   * @return bytes
   */
  public int bytes() {
    return bytes;
  }
}
