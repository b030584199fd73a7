package dev.kvasir.file;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;

/** What SHA-256 made of something, as a value: equal where the kind and all bytes are. */
abstract sealed class Digest permits ChainHash, ModelFingerprint {

  static final int LENGTH = 32;

  private final byte[] bytes;

  /** Keeps the array. */
  Digest(byte[] bytes) {
    this.bytes = bytes;
  }

  static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException e) {
      throw new AssertionError("every Java platform has SHA-256", e);
    }
  }

  /**
   * What it is made of.
   *
   * @return a copy, of 32 bytes
   */
  public byte[] bytes() {
    return bytes.clone();
  }

  @Override
  public final boolean equals(Object other) {
    return other instanceof Digest that && getClass() == that.getClass() && Arrays.equals(bytes, that.bytes);
  }

  @Override
  public final int hashCode() {
    // Any of the bits will do, and tables of names ask often.
    return bytes[0] << 24 | (bytes[1] & 0xFF) << 16 | (bytes[2] & 0xFF) << 8 | (bytes[3] & 0xFF);
  }

  /** In hexadecimal. */
  @Override
  public final String toString() {
    return HexFormat.of().formatHex(bytes);
  }
}
