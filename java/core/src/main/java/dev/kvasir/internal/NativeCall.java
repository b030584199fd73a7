package dev.kvasir.internal;

import java.util.function.Consumer;
import java.util.function.Function;
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

  /** The same with memory for arrays and buffers, whose results are delivered where the work succeeds. */
  public static <T> T getWith(Function<NativeMemory, T> work) {
    NativeLibrary.get();
    try (NativeMemory memory = NativeMemory.open()) {
      T result = work.apply(memory);
      memory.deliver();
      return result;
    } catch (RuntimeException e) {
      throw NativeErrors.translate(e);
    }
  }

  public static void runWith(Consumer<NativeMemory> work) {
    getWith(
        memory -> {
          work.accept(memory);
          return true;
        });
  }
}
