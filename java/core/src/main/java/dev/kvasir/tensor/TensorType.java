package dev.kvasir.tensor;

/** Element types of safetensors files, by the names that the format gives them. All are little-endian. */
public enum TensorType {
  /** IEEE 754 binary64. */
  F64(8),
  /** IEEE 754 binary32. */
  F32(4),
  /** IEEE 754 binary16. */
  F16(2),
  /** The upper half of an {@link #F32}. */
  BF16(2),
  /** 8-bit float with 4 exponent bits. Raw bytes only. */
  F8_E4M3(1),
  /** 8-bit float with 5 exponent bits. Raw bytes only. */
  F8_E5M2(1),
  /** Signed 64-bit integer. */
  I64(8),
  /** Unsigned 64-bit integer. Raw bytes only. */
  U64(8),
  /** Signed 32-bit integer. */
  I32(4),
  /** Unsigned 32-bit integer. */
  U32(4),
  /** Signed 16-bit integer. */
  I16(2),
  /** Unsigned 16-bit integer. */
  U16(2),
  /** Signed 8-bit integer. */
  I8(1),
  /** Unsigned 8-bit integer. */
  U8(1),
  /** A byte that is 0 or 1. */
  BOOL(1);

  private final int bytes;

  TensorType(int bytes) {
    this.bytes = bytes;
  }

  /**
   * Bytes of an element.
   *
   * @return 1, 2, 4 or 8
   */
  public int bytes() {
    return bytes;
  }
}
