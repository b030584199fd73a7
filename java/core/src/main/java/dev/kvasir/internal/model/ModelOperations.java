package dev.kvasir.internal.model;

import dev.kvasir.internal.Checks;
import dev.kvasir.internal.NativeCall;
import dev.kvasir.internal.jni.Native;
import org.jspecify.annotations.Nullable;

/**
 * What a model needs beside attention, on the library's threads: see model.h. A row of a result depends on its own rows
 * of the arguments alone.
 */
public final class ModelOperations {

  private ModelOperations() {}

  /** {@code out[t][o] = sum over i of in[t][i] * weights[o][i], plus bias[o]}. */
  public static void project(
      NativeFloats in, NativeWeights weights, @Nullable NativeFloats bias, int tokens, NativeFloats out) {
    Checks.requirePositive("tokens", tokens);
    var from = in.pointer("in", (long) tokens * weights.width);
    var plus = bias == null ? null : bias.pointer("bias", weights.rows);
    var to = out.pointer("out", (long) tokens * weights.rows);
    NativeCall.run(
        () -> Native.project(from, weights.pointer, weights.type, plus, tokens, weights.rows, weights.width, to));
  }

  /** The rows of weights that {@code ids} name. */
  public static void embed(int[] ids, int tokens, NativeWeights weights, NativeFloats out) {
    Checks.requireElements("ids", ids.length, tokens);
    var to = out.pointer("out", (long) tokens * weights.width);
    NativeCall.runWith(
        memory ->
            Native.embed(memory.in(ids), tokens, weights.pointer, weights.type, weights.rows, weights.width, to));
  }

  /** {@code out[r] = in[r] / rms(in[r]) * weight} for rows of {@code width}; out may be in. */
  public static void rmsNorm(
      NativeFloats in, NativeFloats weight, double epsilon, int rows, int width, NativeFloats out) {
    Checks.requirePositive("rows", rows);
    Checks.requirePositive("width", width);
    var from = in.pointer("in", (long) rows * width);
    var by = weight.pointer("weight", width);
    var to = out.pointer("out", (long) rows * width);
    NativeCall.run(() -> Native.rms_norm(from, by, epsilon, rows, width, to));
  }

  /** The cosines and sines of positions: {@code turns[tokens][2][headDim / 2]}. */
  public static void ropeTurns(
      double[] frequencies, double magnitude, int[] positions, int tokens, NativeFloats turns) {
    Checks.requireElements("positions", positions.length, tokens);
    int headDim = 2 * frequencies.length;
    var to = turns.pointer("turns", (long) tokens * headDim);
    NativeCall.runWith(
        memory ->
            Native.rope_turns(memory.in(frequencies), headDim, magnitude, memory.in(positions), tokens, to));
  }

  /** Turns rows {@code [tokens][heads][headDim]} in place. */
  public static void ropeTurn(NativeFloats turns, int tokens, int heads, int headDim, int pairs, NativeFloats rows) {
    Checks.requirePositive("tokens", tokens);
    Checks.requirePositive("heads", heads);
    Checks.requirePositive("headDim", headDim);
    var by = turns.pointer("turns", (long) tokens * headDim);
    var to = rows.pointer("rows", (long) tokens * heads * headDim);
    NativeCall.run(() -> Native.rope_turn(by, tokens, heads, headDim, pairs, to));
  }

  /** {@code out[i] = silu(gate[i]) * up[i]}; out may be one of them. */
  public static void swiglu(NativeFloats gate, NativeFloats up, int count, NativeFloats out) {
    var from = gate.pointer("gate", count);
    var by = up.pointer("up", count);
    var to = out.pointer("out", count);
    NativeCall.run(() -> Native.swiglu(from, by, count, to));
  }

  /** {@code out[i] += in[i]}. */
  public static void add(NativeFloats in, int count, NativeFloats out) {
    var from = in.pointer("in", count);
    var to = out.pointer("out", count);
    NativeCall.run(() -> Native.add_rows(from, count, to));
  }
}
