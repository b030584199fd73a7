package dev.kvasir.internal;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Buffers over memory of native code.
 *
 * <p>{@code Pointer.asByteBuffer} makes such buffers, too, and ends the JVM where Java has no room for one, on the heap or on the
 * stack. Where another library over JavaCPP is loaded, it may be that one's code which does.
 */
final class MemoryView {

  private MemoryView() {}

  /** All of it, in the machine's byte order. The memory must outlive the buffer. */
  static ByteBuffer of(long address, long bytes) {
    return buffer(address, bytes).order(ByteOrder.nativeOrder());
  }

  private static native ByteBuffer buffer(long address, long bytes);
}
