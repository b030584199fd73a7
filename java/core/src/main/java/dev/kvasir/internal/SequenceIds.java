package dev.kvasir.internal;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;

/** Sequence ids in the form that goes with direct float buffers: a direct buffer, one per thread and used again. */
public final class SequenceIds {

  private static final int INITIAL = 16;
  private static final ThreadLocal<LongBuffer> SCRATCH = ThreadLocal.withInitial(() -> allocate(INITIAL));

  private SequenceIds() {}

  /** A buffer with these ids. Valid until the thread's next call. */
  public static LongBuffer direct(long[] ids) {
    LongBuffer scratch = SCRATCH.get();
    if (scratch.capacity() < ids.length) {
      scratch = allocate(Math.max(ids.length, 2 * scratch.capacity()));
      SCRATCH.set(scratch);
    }
    scratch.put(0, ids);
    return scratch;
  }

  private static LongBuffer allocate(int count) {
    return ByteBuffer.allocateDirect(Math.multiplyExact(count, Long.BYTES))
        .order(ByteOrder.nativeOrder())
        .asLongBuffer();
  }
}
