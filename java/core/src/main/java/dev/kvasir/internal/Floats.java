package dev.kvasir.internal;

import java.nio.FloatBuffer;
import java.util.Arrays;

/**
 * What native calls take for float data: direct buffers, in place, or arrays of the exact length. (The glue copies an
 * array whole, however little of it is needed, and mishandles heap buffers with an offset.)
 */
public final class Floats {

  private Floats() {}

  /** Throws IllegalArgumentException unless the array has the needed elements. */
  public static void require(String name, float[] array, long needed) {
    Checks.requireElements(name, array.length, needed);
  }

  /** Throws IllegalArgumentException unless the buffer has the needed elements in native byte order. */
  public static void require(String name, FloatBuffer buffer, long needed) {
    Checks.requireElements(name, buffer.remaining(), needed);
    Checks.requireNativeOrder(name, buffer.order());
  }

  /** The same, and throws if the buffer is read-only. */
  public static void requireWritable(String name, FloatBuffer buffer, long needed) {
    require(name, buffer, needed);
    Checks.requireWritable(name, buffer);
  }

  /** The first {@code count} elements from the position on, in place. A view of one's own cannot move meanwhile. */
  public static FloatBuffer direct(FloatBuffer buffer, int count) {
    return buffer.slice(buffer.position(), count);
  }

  /** An array whose content is the first {@code count} elements: the given one if it is no longer than that. */
  public static float[] exact(float[] array, int count) {
    return array.length == count ? array : Arrays.copyOf(array, count);
  }

  /** The same for the buffer's elements from its position on. */
  public static float[] exact(FloatBuffer buffer, int count) {
    if (isWhole(buffer, count)) {
      return buffer.array();
    }
    float[] copy = new float[count];
    buffer.get(buffer.position(), copy);
    return copy;
  }

  /** An array to compute the first {@code count} elements in, before {@link #deliver}. */
  public static float[] target(float[] array, int count) {
    return array.length == count ? array : new float[count];
  }

  /** The same for the buffer's elements from its position on. */
  public static float[] target(FloatBuffer buffer, int count) {
    return isWhole(buffer, count) ? buffer.array() : new float[count];
  }

  /** Moves a computed target to where the caller wants it. */
  public static void deliver(float[] target, float[] array) {
    if (target != array) {
      System.arraycopy(target, 0, array, 0, target.length);
    }
  }

  /** The same for the buffer's elements from its position on. */
  public static void deliver(float[] target, FloatBuffer buffer) {
    if (!isWhole(buffer, target.length)) {
      buffer.put(buffer.position(), target);
    }
  }

  private static boolean isWhole(FloatBuffer buffer, int count) {
    return buffer.hasArray()
        && buffer.arrayOffset() + buffer.position() == 0
        && buffer.array().length == count;
  }
}
