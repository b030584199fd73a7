package dev.kvasir.internal;

import java.nio.ShortBuffer;
import java.util.Objects;

/** {@link Floats} for 16-bit input. */
public final class Shorts {

  private Shorts() {}

  /** Throws IllegalArgumentException unless the buffer has the needed elements in native byte order. */
  public static void require(String name, ShortBuffer buffer, long needed) {
    Checks.requireElements(name, Objects.requireNonNull(buffer, name).remaining(), needed);
    Checks.requireNativeOrder(name, buffer.order());
  }
}
