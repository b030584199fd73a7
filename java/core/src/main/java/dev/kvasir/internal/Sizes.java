package dev.kvasir.internal;

import java.nio.Buffer;
import java.nio.ByteOrder;

/** Checks of what callers pass in, before native code sees it. */
public final class Sizes {

  private Sizes() {}

  /** The product. Throws IllegalArgumentException where it does not fit a long. */
  public static long product(long a, long b) {
    try {
      return Math.multiplyExact(a, b);
    } catch (ArithmeticException e) {
      throw new IllegalArgumentException(a + " times " + b + " elements", e);
    }
  }

  /** Throws IllegalArgumentException unless positive. */
  public static void requirePositive(String name, long value) {
    if (value <= 0) {
      throw new IllegalArgumentException(name + " is " + value + ", not 1 or more");
    }
  }

  /** Throws IllegalArgumentException if negative. */
  public static void requireNotNegative(String name, long value) {
    if (value < 0) {
      throw new IllegalArgumentException(name + " is " + value + ", not 0 or more");
    }
  }

  static void require(String name, int present, long needed) {
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
