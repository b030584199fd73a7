package dev.kvasir;

/** What the 16 bits of a {@code short} mean. */
public enum HalfFormat {
  /** IEEE 754 binary16: 5 bits of exponent, 10 of fraction. */
  FLOAT16,
  /** The upper half of a {@code float}: 8 bits of exponent, 7 of fraction. Rounded to float16 by an append. */
  BFLOAT16
}
