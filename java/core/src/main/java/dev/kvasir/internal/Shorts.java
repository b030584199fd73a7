package dev.kvasir.internal;

import java.nio.ShortBuffer;

/** {@link Floats} for 16-bit input. */
public final class Shorts {

  private Shorts() {}

  /** Throws IllegalArgumentException unless the buffer has the needed elements in native byte order. */
  public static void require(String name, ShortBuffer buffer, long needed) {
    Checks.requireElements(name, buffer.remaining(), needed);
    Checks.requireNativeOrder(name, buffer.order());
  }

  /** The first {@code count} elements from the position on, in place. */
  public static ShortBuffer direct(ShortBuffer buffer, int count) {
    return buffer.slice(buffer.position(), count);
  }

  /** An array whose content is the buffer's first {@code count} elements from its position on. */
  public static short[] exact(ShortBuffer buffer, int count) {
    if (buffer.hasArray() && buffer.arrayOffset() + buffer.position() == 0 && buffer.array().length == count) {
      return buffer.array();
    }
    short[] copy = new short[count];
    buffer.get(buffer.position(), copy);
    return copy;
  }
}
