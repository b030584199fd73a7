package dev.kvasir.internal;

import java.nio.FloatBuffer;
import java.util.Objects;

/** Checks of float data that a caller passes in. */
public final class Floats {

  private Floats() {}

  /** Throws IllegalArgumentException unless the array has the needed elements. */
  public static void require(String name, float[] array, long needed) {
    Checks.requireElements(name, Objects.requireNonNull(array, name).length, needed);
  }

  /** Throws IllegalArgumentException unless the buffer has the needed elements in native byte order. */
  public static void require(String name, FloatBuffer buffer, long needed) {
    Checks.requireElements(name, Objects.requireNonNull(buffer, name).remaining(), needed);
    Checks.requireNativeOrder(name, buffer.order());
  }

  /** The same, and throws if the buffer is read-only. */
  public static void requireWritable(String name, FloatBuffer buffer, long needed) {
    require(name, buffer, needed);
    Checks.requireWritable(name, buffer);
  }
}
