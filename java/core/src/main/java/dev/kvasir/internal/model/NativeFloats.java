package dev.kvasir.internal.model;

import dev.kvasir.internal.NativeLibrary;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import org.bytedeco.javacpp.FloatPointer;

/** Floats outside the heap, and their address: both for as long as this is reachable. */
public final class NativeFloats {

  private final FloatBuffer buffer;
  private final FloatPointer pointer;

  /** So many zeros. */
  public NativeFloats(int count) {
    NativeLibrary.get();
    buffer =
        ByteBuffer.allocateDirect(Math.multiplyExact(Math.max(1, count), Float.BYTES))
            .order(ByteOrder.nativeOrder())
            .asFloatBuffer();
    pointer = new FloatPointer(buffer);
  }

  /** A copy. */
  public static NativeFloats of(float[] values) {
    NativeFloats copy = new NativeFloats(values.length);
    copy.buffer.put(0, values);
    return copy;
  }

  /** The floats; its position must stay 0. */
  public FloatBuffer buffer() {
    return buffer;
  }

  FloatPointer pointer(String name, long needed) {
    if (needed > buffer.capacity()) {
      throw new IllegalArgumentException(name + " has " + buffer.capacity() + " elements, not " + needed);
    }
    return pointer;
  }
}
