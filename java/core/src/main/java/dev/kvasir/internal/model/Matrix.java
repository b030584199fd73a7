package dev.kvasir.internal.model;

import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Floats;
import dev.kvasir.internal.NativeCall;
import dev.kvasir.internal.Shorts;
import dev.kvasir.internal.jni.Native;
import java.nio.Buffer;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import org.jspecify.annotations.Nullable;

/**
 * Dense products for models that run beside a cache, on the library's threads.
 *
 * <p>All buffers are direct, in native byte order, and read or written from their position on; positions stay where
 * they are. An element of a result depends on its own row and column of the arguments alone: neither the number of
 * threads nor what else is in the call changes a bit of it.
 */
public final class Matrix {

  private Matrix() {}

  /**
   * {@code out[r][c] = sum over i of a[r][i] * b[c][i], plus bias[c]}: activations times the rows of a weight matrix,
   * added up in float32.
   *
   * @param a {@code [rows][depth]}
   * @param b {@code [columns][depth]}
   * @param bias {@code [columns]}, or null
   * @param rows 1 or more
   * @param columns 1 or more
   * @param depth 1 or more
   * @param out {@code [rows][columns]}, apart from all others
   * @throws IllegalArgumentException if a size is not positive, or a buffer is too short, not direct, in the wrong
   *     byte order or, for {@code out}, read-only
   */
  public static void product(
      FloatBuffer a, FloatBuffer b, @Nullable FloatBuffer bias, int rows, int columns, int depth, FloatBuffer out) {
    requireOperands(a, bias, rows, columns, depth, out);
    Floats.require("b", b, Checks.product(columns, depth));
    requireDirect("b", b);
    NativeCall.runWith(
        memory ->
            Native.matrix_product(
                memory.in(a, rows * depth),
                memory.in(b, columns * depth),
                bias == null ? null : memory.in(bias, columns),
                rows,
                columns,
                depth,
                memory.out(out, rows * columns)));
  }

  /**
   * {@link #product(FloatBuffer, FloatBuffer, FloatBuffer, int, int, int, FloatBuffer)} with weights in bfloat16: the
   * same to the last bit as on the widened weights, at half the memory.
   *
   * @param a {@code [rows][depth]}
   * @param b {@code [columns][depth]}, bfloat16 bits
   * @param bias {@code [columns]}, or null
   * @param rows 1 or more
   * @param columns 1 or more
   * @param depth 1 or more
   * @param out {@code [rows][columns]}, apart from all others
   * @throws IllegalArgumentException if a size is not positive, or a buffer is too short, not direct, in the wrong
   *     byte order or, for {@code out}, read-only
   */
  public static void product(
      FloatBuffer a, ShortBuffer b, @Nullable FloatBuffer bias, int rows, int columns, int depth, FloatBuffer out) {
    requireOperands(a, bias, rows, columns, depth, out);
    Shorts.require("b", b, Checks.product(columns, depth));
    requireDirect("b", b);
    NativeCall.runWith(
        memory ->
            Native.matrix_product_bf16(
                memory.in(a, rows * depth),
                memory.in(b, columns * depth),
                bias == null ? null : memory.in(bias, columns),
                rows,
                columns,
                depth,
                memory.out(out, rows * columns)));
  }

  /**
   * The middle of a SwiGLU layer: {@code out[r][c] = silu(gates[r][c]) * gates[r][columns + c]} with {@code silu(x) =
   * x / (1 + exp(-x))}.
   *
   * @param gates {@code [rows][2 * columns]}: gate and up projection side by side
   * @param rows 1 or more
   * @param columns 1 or more
   * @param out {@code [rows][columns]}, apart from the gates
   * @throws IllegalArgumentException if a size is not positive, or a buffer is too short, not direct, in the wrong
   *     byte order or, for {@code out}, read-only
   */
  public static void siluProduct(FloatBuffer gates, int rows, int columns, FloatBuffer out) {
    Checks.requirePositive("rows", rows);
    Checks.requirePositive("columns", columns);
    Floats.require("gates", gates, Checks.product(2L * columns, rows));
    Floats.requireWritable("out", out, Checks.product(rows, columns));
    requireDirect("gates", gates);
    requireDirect("out", out);
    NativeCall.runWith(
        memory ->
            Native.silu_product(
                memory.in(gates, 2 * rows * columns), rows, columns, memory.out(out, rows * columns)));
  }

  private static void requireOperands(
      FloatBuffer a, @Nullable FloatBuffer bias, int rows, int columns, int depth, FloatBuffer out) {
    Checks.requirePositive("rows", rows);
    Checks.requirePositive("columns", columns);
    Checks.requirePositive("depth", depth);
    Floats.require("a", a, Checks.product(rows, depth));
    Floats.requireWritable("out", out, Checks.product(rows, columns));
    requireDirect("a", a);
    requireDirect("out", out);
    if (bias != null) {
      Floats.require("bias", bias, columns);
      requireDirect("bias", bias);
    }
  }

  private static void requireDirect(String name, Buffer buffer) {
    if (!buffer.isDirect()) {
      throw new IllegalArgumentException(name + " is no direct buffer");
    }
  }
}
