package dev.kvasir.internal;

import dev.kvasir.internal.jni.Native;

/** See rope.h. Arrays of frequencies have headDim / 2 elements; scalings change them in place. */
public final class NativeRope {

  private NativeRope() {}

  public static void plain(double base, int headDim, double[] frequencies) {
    NativeCall.runWith(memory -> Native.rope_frequencies(base, headDim, memory.out(frequencies)));
  }

  public static void linear(double factor, int headDim, double[] frequencies) {
    NativeCall.runWith(memory -> Native.scale_rope_linear(factor, headDim, memory.inOut(frequencies)));
  }

  public static void llama3(
      double factor, double lowFactor, double highFactor, double originalContext, int headDim, double[] frequencies) {
    NativeCall.runWith(
        memory ->
            Native.scale_rope_llama3(
                factor, lowFactor, highFactor, originalContext, headDim, memory.inOut(frequencies)));
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
    return NativeCall.getWith(
        memory ->
            Native.scale_rope_yarn(
                base, factor, betaFast, betaSlow, originalContext, headDim, memory.inOut(frequencies)));
  }

  public static void rotate(
      float[] rows,
      int elements,
      int tokens,
      int heads,
      int headDim,
      double[] frequencies,
      int pairs,
      long first,
      double scale) {
    NativeCall.runWith(
        memory ->
            Native.rotate(
                memory.inOut(rows, elements), tokens, heads, headDim, memory.in(frequencies), pairs, first, scale));
  }
}
