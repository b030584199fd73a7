package dev.kvasir;

/** What elements look like in the memory of a device. */
public enum ElementType {
  /** IEEE 754 binary32. */
  FLOAT32(Float.BYTES),
  /** IEEE 754 binary16: 5 bits of exponent, 10 of fraction. */
  FLOAT16(Short.BYTES),
  /** The upper half of a {@code float}: 8 bits of exponent, 7 of fraction. */
  BFLOAT16(Short.BYTES);

  private final int bytes;

  ElementType(int bytes) {
    this.bytes = bytes;
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
