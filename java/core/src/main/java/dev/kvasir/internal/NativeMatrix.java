package dev.kvasir.internal;

import dev.kvasir.internal.jni.Native;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import org.jspecify.annotations.Nullable;

/** The native matrix products, on direct buffers whose sizes have been checked. */
public final class NativeMatrix {

  private NativeMatrix() {}

  /** See matrix_product in matrix.h. */
  public static void product(
      FloatBuffer a, FloatBuffer b, @Nullable FloatBuffer bias, int rows, int columns, int depth, FloatBuffer out) {
    NativeCall.run(() -> Native.matrix_product(a, b, bias, rows, columns, depth, out));
  }

  /** See matrix_product_bf16 in matrix.h. */
  public static void product(
      FloatBuffer a, ShortBuffer b, @Nullable FloatBuffer bias, int rows, int columns, int depth, FloatBuffer out) {
    NativeCall.run(() -> Native.matrix_product_bf16(a, b, bias, rows, columns, depth, out));
  }

  /** See silu_product in matrix.h. */
  public static void siluProduct(FloatBuffer gates, int rows, int columns, FloatBuffer out) {
    NativeCall.run(() -> Native.silu_product(gates, rows, columns, out));
  }
}
