package dev.kvasir.internal;

import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.jni.Native;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/** The native calls of calibration, with arrays checked against the shapes that native code will read. */
public final class Calibration {

  private Calibration() {}

  /** Squared errors by candidate, and the squared norm of what they are errors of. */
  public record Errors(double[] errors, double energy) {}

  /** See sensitivities in calibrate.h. */
  public static double[] sensitivities(
      float[] rows,
      float[] gradients,
      int tokens,
      int kvHeads,
      int headDim,
      int axis,
      int group,
      float @Nullable [] scaling,
      int[] widths) {
    int needed = elements("rows", rows, tokens, kvHeads, headDim);
    elements("gradients", gradients, tokens, kvHeads, headDim);
    double[] sums = new double[widths.length];
    NativeCall.runWith(
        memory ->
            Native.sensitivities(
                memory.in(rows, needed),
                memory.in(gradients, needed),
                tokens,
                kvHeads,
                headDim,
                axis,
                group,
                memory.inOrNull(scaling),
                memory.in(widths),
                widths.length,
                memory.out(sums)));
    return sums;
  }

  /** See rope_frequencies in calibrate.h. */
  public static double[] ropeFrequencies(double base, int headDim) {
    double[] frequencies = new double[headDim / 2];
    NativeRope.plain(base, headDim, frequencies);
    return frequencies;
  }

  /** A rotated copy; see rotate in rope.h. */
  public static float[] rotated(
      String name,
      float[] rows,
      int tokens,
      int heads,
      int headDim,
      double[] frequencies,
      int pairs,
      long first,
      double scale) {
    float[] copy = Arrays.copyOf(rows, elements(name, rows, tokens, heads, headDim));
    NativeRope.rotate(copy, copy.length, tokens, heads, headDim, frequencies, pairs, first, scale);
    return copy;
  }

  /** See raise_key_maxima in calibrate.h. */
  public static void raiseKeyMaxima(float[] keys, int tokens, int kvHeads, int headDim, int pairs, float[] maxima) {
    int needed = elements("keys", keys, tokens, kvHeads, headDim);
    NativeCall.runWith(
        memory ->
            Native.raise_key_maxima(
                memory.in(keys, needed), tokens, kvHeads, headDim, pairs, memory.inOut(maxima, maxima.length)));
  }

  /** See scaling_factors in calibrate.h. */
  public static float[] scalingFactors(float[] maxima, double alpha) {
    float[] lambda = new float[maxima.length];
    NativeCall.runWith(
        memory -> Native.scaling_factors(memory.in(maxima), maxima.length, alpha, memory.out(lambda)));
    return lambda;
  }

  /** See key_scaling_errors in calibrate.h. */
  public static Errors keyScalingErrors(
      float[] keys,
      float[] values,
      int tokens,
      float[] queries,
      int queryTokens,
      int queryHeads,
      int kvHeads,
      int headDim,
      float softmaxScale,
      int bits,
      int group,
      float[] candidates,
      int candidateCount) {
    int rows = elements("keys", keys, tokens, kvHeads, headDim);
    elements("values", values, tokens, kvHeads, headDim);
    int queryRows = elements("queries", queries, queryTokens, queryHeads, headDim);
    double[] errors = new double[candidateCount];
    double[] energy = new double[1];
    NativeCall.runWith(
        memory ->
            Native.key_scaling_errors(
                memory.in(keys, rows),
                memory.in(values, rows),
                tokens,
                memory.in(queries, queryRows),
                queryTokens,
                queryHeads,
                kvHeads,
                headDim,
                softmaxScale,
                bits,
                group,
                memory.in(candidates),
                candidateCount,
                memory.out(errors),
                memory.out(energy)));
    return new Errors(errors, energy[0]);
  }

  /** The same, with the layer, which native functions on arrays do not know; `of` is what the arrays are. */
  public static NotFiniteException inLayer(NotFiniteException e, String of, int layer) {
    return new NotFiniteException(
        of + " of layer " + layer + ": " + e.getMessage(),
        new NotFiniteException.Place(e.input(), layer, e.token(), e.head(), e.channel(), e.value()),
        e);
  }

  private static int elements(String name, float[] array, int tokens, int heads, int headDim) {
    return Checks.rows(name, array, tokens, (long) heads * headDim);
  }
}
