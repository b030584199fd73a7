package dev.kvasir.internal;

import java.nio.Buffer;
import java.nio.ByteOrder;

/**
 * Checks of what callers pass in. All throw IllegalArgumentException with a message that names the values. What every
 * append and attend passes makes its message only where it throws.
 */
public final class Checks {

  private Checks() {}

  public static void require(boolean good, String message) {
    if (!good) {
      throw new IllegalArgumentException(message);
    }
  }

  /** The message is "name is value, not allowed". */
  public static void require(boolean good, String name, Object value, String allowed) {
    if (!good) {
      throw new IllegalArgumentException(name + " is " + value + ", not " + allowed);
    }
  }

  /** The layer, which must be one of so many. */
  public static int layer(int layer, int layers) {
    if (layer < 0 || layer >= layers) {
      throw new IllegalArgumentException("layer " + layer + " of " + layers + " layers");
    }
    return layer;
  }

  /** The head dim, which must be one that RoPE and caches accept: before anything is allocated by it. */
  public static int headDim(int headDim) {
    require(headDim >= 32 && headDim <= 256 && headDim % 16 == 0, "headDim", headDim, "a multiple of 16 in 32..256");
    return headDim;
  }

  /** The elements of so many rows, which the array must have. */
  public static int rows(String name, float[] rows, int tokens, long width) {
    requirePositive("tokens", tokens);
    long needed = product(tokens, width);
    requireElements(name, rows.length, needed);
    return (int) needed;
  }

  /** The product, which must fit a long. */
  public static long product(long a, long b) {
    try {
      return Math.multiplyExact(a, b);
    } catch (ArithmeticException e) {
      throw new IllegalArgumentException(a + " times " + b + " elements", e);
    }
  }

  public static void requirePositive(String name, long value) {
    if (value <= 0) {
      throw new IllegalArgumentException(name + " is " + value + ", not 1 or more");
    }
  }

  public static void requireNotNegative(String name, long value) {
    if (value < 0) {
      throw new IllegalArgumentException(name + " is " + value + ", not 0 or more");
    }
  }

  public static void requireElements(String name, long present, long needed) {
    if (present < needed) {
      throw new IllegalArgumentException(name + " has " + present + " elements, " + needed + " are needed");
    }
  }

  static void requireNativeOrder(String name, ByteOrder order) {
    if (order != ByteOrder.nativeOrder()) {
      throw new IllegalArgumentException(
          name + " is " + order + " on a " + ByteOrder.nativeOrder()
              + " machine: call order(ByteOrder.nativeOrder()) on the ByteBuffer before its asFloatBuffer() or"
              + " asShortBuffer()");
    }
  }

  static void requireWritable(String name, Buffer buffer) {
    if (buffer.isReadOnly()) {
      throw new IllegalArgumentException(name + " is read-only");
    }
  }
}
