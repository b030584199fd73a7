package dev.kvasir.internal;

import dev.kvasir.error.KvException;
import java.lang.ref.Cleaner;
import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.bytedeco.javacpp.Pointer;

/**
 * Native memory for as long as a buffer over it, or one made from that, is reachable. No JVM counts it: what {@code
 * allocateDirect} hands out may not be more than the heap, unless an option says so.
 */
public final class LastingMemory {

  private static final Cleaner CLEANER = Cleaner.create();
  private static final long LEAST = 1L << 30;
  private static final long PAUSE_NANOS = 10_000_000;
  private static final int PAUSES = 5;

  private static final AtomicLong LASTING = new AtomicLong();
  /** Beyond this the collector is asked for what nobody reaches: nothing on the heap tells it of these bytes. */
  private static long most = LEAST;

  private LastingMemory() {}

  /** So many bytes, with anything in them. */
  public static ByteBuffer of(int bytes) {
    NativeLibrary.get();
    count(bytes);
    Pointer memory = Pointer.malloc(Math.max(bytes, 1));
    if (memory == null || memory.isNull()) {
      LASTING.addAndGet(-bytes);
      throw new KvException(KvException.Code.OUT_OF_MEMORY, "no native memory for " + bytes + " bytes", null);
    }
    Runnable free =
        () -> {
          Pointer.free(memory);
          LASTING.addAndGet(-bytes);
        };
    try {
      ByteBuffer view = MemoryView.of(memory.address(), bytes);
      CLEANER.register(view, free);
      return view;
    } catch (Throwable e) { // no heap for the view, or no stack
      free.run();
      throw e;
    }
  }

  /** All that was handed out and is not free yet. */
  static long lasting() {
    return LASTING.get();
  }

  private static synchronized void count(int bytes) {
    if (LASTING.addAndGet(bytes) <= most) {
      return;
    }
    System.gc();
    long left = LASTING.get();
    for (int idle = 0; idle < PAUSES; ) { // another thread gives back, piece by piece
      LockSupport.parkNanos(PAUSE_NANOS);
      long now = LASTING.get();
      idle = now < left ? 0 : idle + 1;
      left = now;
    }
    most = Math.max(LEAST, 2 * left);
  }
}
