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
}
