package dev.kvasir.internal.commvq;

import dev.kvasir.internal.NativeErrors;
import dev.kvasir.internal.NativeLibrary;
import dev.kvasir.internal.jni.Native;
import java.util.function.DoubleSupplier;

/** See rope.h. Arrays of frequencies have headDim / 2 elements; scalings change them in place. */
public final class NativeRope {

  private NativeRope() {}

  public static void plain(double base, int headDim, double[] frequencies) {
    call(
        () -> {
          Native.rope_frequencies(base, headDim, frequencies);
          return 1;
        });
  }

  public static void linear(double factor, int headDim, double[] frequencies) {
    call(
        () -> {
          Native.scale_rope_linear(factor, headDim, frequencies);
          return 1;
        });
  }

  public static void llama3(
      double factor, double lowFactor, double highFactor, double originalContext, int headDim, double[] frequencies) {
    call(
        () -> {
          Native.scale_rope_llama3(factor, lowFactor, highFactor, originalContext, headDim, frequencies);
          return 1;
        });
  }

  /** Returns the model's attention factor. */
  public static double yarn(
      double base,
      double factor,
      double betaFast,
      double betaSlow,
      double originalContext,
      int headDim,
      double[] frequencies) {
    return call(
        () -> Native.scale_rope_yarn(base, factor, betaFast, betaSlow, originalContext, headDim, frequencies));
  }

  public static void rotate(
      float[] rows,
      int tokens,
      int heads,
      int headDim,
      double[] frequencies,
      int pairs,
      long first,
      double scale) {
    call(
        () -> {
          Native.rotate(rows, tokens, heads, headDim, frequencies, pairs, first, scale);
          return 1;
        });
  }

  private static double call(DoubleSupplier work) {
    NativeLibrary.get();
    try {
      return work.getAsDouble();
    } catch (RuntimeException e) {
      throw NativeErrors.translate(e);
    }
  }
}
