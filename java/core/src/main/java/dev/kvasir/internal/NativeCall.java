package dev.kvasir.internal;

import java.util.function.Supplier;

/** A call of native code that needs no object: the library is there, and its errors become exceptions. */
public final class NativeCall {

  private NativeCall() {}

  public static <T> T get(Supplier<T> work) {
    NativeLibrary.get();
    try {
      return work.get();
    } catch (RuntimeException e) {
      throw NativeErrors.translate(e);
    }
  }

  public static void run(Runnable work) {
    get(
        () -> {
          work.run();
          return true;
        });
  }
}
