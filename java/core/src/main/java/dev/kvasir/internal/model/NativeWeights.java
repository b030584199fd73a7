package dev.kvasir.internal.model;

import dev.kvasir.internal.Checks;
import dev.kvasir.internal.LastingMemory;
import dev.kvasir.internal.NativeCall;
import dev.kvasir.internal.NativeLibrary;
import dev.kvasir.internal.jni.Native;
import java.nio.ByteBuffer;
import org.bytedeco.javacpp.BytePointer;

/** A matrix of weights in a type of model.h, read where it lies: in a direct or mapped buffer, which is kept reachable. */
public final class NativeWeights {

  final int type;
  final int rows;
  final int width;
  final BytePointer pointer;
  private final ByteBuffer bytes;

  /**
   * Weights in place.
   *
   * @param bytes a direct buffer that begins with them
   * @param type their number in model.h
   * @throws IllegalArgumentException if there is no such type, rows are no whole blocks, or the buffer is too short or
   *     not direct
   */
  public NativeWeights(ByteBuffer bytes, int type, int rows, int width) {
    NativeLibrary.get();
    if (!bytes.isDirect()) {
      throw new IllegalArgumentException("weights are in no direct buffer");
    }
    Checks.requirePositive("rows", rows);
    Checks.requirePositive("width", width);
    Checks.requireElements("weights", bytes.capacity(), Math.multiplyExact(rows, rowBytes(type, width)));
    this.bytes = bytes.duplicate().clear();
    this.pointer = new BytePointer(this.bytes);
    this.type = type;
    this.rows = rows;
    this.width = width;
  }

  /** Memory for weights, outside of what the JVM counts: a model may be many times as long as its heap. */
  public static ByteBuffer memory(int bytes) {
    return LastingMemory.of(bytes);
  }

  /** Bytes of a row of weights, which must be whole blocks of the type. */
  public static long rowBytes(int type, long width) {
    return NativeCall.get(() -> Native.weight_row_bytes(type, width));
  }
}
