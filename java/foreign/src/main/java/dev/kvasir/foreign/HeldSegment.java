package dev.kvasir.foreign;

import dev.kvasir.HeldMemory;
import dev.kvasir.internal.foreign.HeldCall;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import org.jspecify.annotations.Nullable;

/**
 * A native segment, held the one way that Java offers: while native code is called with a segment, its Arena cannot be
 * closed. So the call goes through a native function that does nothing but call back.
 */
record HeldSegment(MemorySegment segment) implements HeldMemory {

  @Override
  public long address() {
    return segment.address();
  }

  @Override
  public long bytes() {
    return segment.byteSize();
  }

  @Override
  public boolean readOnly() {
    return segment.isReadOnly();
  }

  @Override
  public void hold(Runnable call) {
    if (!segment.scope().isAlive()) {
      throw new IllegalStateException("the memory of a segment is gone: its Arena is closed");
    }
    if (!segment.isAccessibleBy(Thread.currentThread())) {
      throw new IllegalStateException("a segment is confined to another thread");
    }
    Callback.run(segment, call);
  }

  /** Calls that native code calls back, each on the thread that made it. */
  private static final class Callback {

    private static final ThreadLocal<@Nullable Callback> CURRENT = new ThreadLocal<>();
    private static final MethodHandle HELD_CALL;
    private static final MemorySegment STUB;

    static {
      Linker linker = Linker.nativeLinker();
      HELD_CALL =
          linker.downcallHandle(
              MemorySegment.ofAddress(HeldCall.address()),
              FunctionDescriptor.ofVoid(ValueLayout.ADDRESS, ValueLayout.ADDRESS));
      try {
        MethodHandle called =
            MethodHandles.lookup().findStatic(Callback.class, "called", MethodType.methodType(void.class));
        STUB = linker.upcallStub(called, FunctionDescriptor.ofVoid(), Arena.global());
      } catch (ReflectiveOperationException e) {
        throw new AssertionError(e);
      }
    }

    /** More than the way to {@link #called} takes, compiled as they may be. */
    private static final int STACK_FRAMES = 500;

    private final Runnable call;
    private boolean begun;
    private @Nullable Throwable thrown;

    private Callback(Runnable call) {
      this.call = call;
    }

    static void run(MemorySegment segment, Runnable call) {
      touchStack(STACK_FRAMES);
      Callback before = CURRENT.get();
      Callback own = new Callback(call);
      CURRENT.set(own);
      try {
        HELD_CALL.invokeExact(segment, STUB);
      } catch (Throwable e) {
        if (own.begun) {
          throw new AssertionError("nothing is thrown after the call", e);
        }
        throw new IllegalStateException("the memory of a segment cannot be used here: " + e.getMessage(), e);
      } finally {
        CURRENT.set(before);
      }
      rethrow(own.thrown);
    }

    /** Ends here where the stack does, not between native code and {@link #called}, where that ends the JVM. */
    private static int touchStack(int frames) {
      return frames == 0 ? 0 : 1 + touchStack(frames - 1);
    }

    /** Nothing may leave it: a JVM ends where an exception reaches native code. */
    private static void called() {
      Callback own = CURRENT.get();
      if (own == null) {
        return;
      }
      own.begun = true;
      try {
        own.call.run();
      } catch (Throwable e) {
        own.thrown = e;
      }
    }

    private static void rethrow(@Nullable Throwable thrown) {
      if (thrown instanceof RuntimeException e) {
        throw e;
      }
      if (thrown instanceof Error e) {
        throw e;
      }
    }
  }
}
