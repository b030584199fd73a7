package dev.kvasir.internal;

import java.nio.Buffer;
import java.nio.ByteOrder;

/** Checks of what callers pass in. All throw IllegalArgumentException with a message that names the values. */
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
    require(value > 0, name, value, "1 or more");
  }

  public static void requireNotNegative(String name, long value) {
    require(value >= 0, name, value, "0 or more");
  }

  public static void requireElements(String name, long present, long needed) {
    require(present >= needed, name + " has " + present + " elements, " + needed + " are needed");
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
    require(!buffer.isReadOnly(), name + " is read-only");
  }
}
