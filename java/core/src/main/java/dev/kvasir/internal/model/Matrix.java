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
    Operands operands = new Operands(a, bias, rows, columns, depth, out);
    Floats.require("b", b, Checks.product(columns, depth));
    FloatBuffer weights = direct("b", b, columns * depth);
    NativeCall.run(
        () -> Native.matrix_product(operands.a, weights, operands.bias, rows, columns, depth, operands.out));
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
    Operands operands = new Operands(a, bias, rows, columns, depth, out);
    Shorts.require("b", b, Checks.product(columns, depth));
    requireDirect("b", b);
    ShortBuffer weights = Shorts.direct(b, columns * depth);
    NativeCall.run(
        () -> Native.matrix_product_bf16(operands.a, weights, operands.bias, rows, columns, depth, operands.out));
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
    FloatBuffer from = direct("gates", gates, 2 * rows * columns);
    FloatBuffer to = direct("out", out, rows * columns);
    NativeCall.run(() -> Native.silu_product(from, rows, columns, to));
  }

  /** What both products take, checked. */
  private static final class Operands {
    final FloatBuffer a;
    final @Nullable FloatBuffer bias;
    final FloatBuffer out;

    Operands(FloatBuffer a, @Nullable FloatBuffer bias, int rows, int columns, int depth, FloatBuffer out) {
      Checks.requirePositive("rows", rows);
      Checks.requirePositive("columns", columns);
      Checks.requirePositive("depth", depth);
      Floats.require("a", a, Checks.product(rows, depth));
      Floats.requireWritable("out", out, Checks.product(rows, columns));
      if (bias != null) {
        Floats.require("bias", bias, columns);
      }
      this.a = direct("a", a, rows * depth);
      this.bias = bias == null ? null : direct("bias", bias, columns);
      this.out = direct("out", out, rows * columns);
    }
  }

  private static FloatBuffer direct(String name, FloatBuffer buffer, int count) {
    requireDirect(name, buffer);
    return Floats.direct(buffer, count);
  }

  private static void requireDirect(String name, Buffer buffer) {
    if (!buffer.isDirect()) {
      throw new IllegalArgumentException(name + " is no direct buffer");
    }
  }
}
