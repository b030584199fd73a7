package dev.kvasir.internal.model;

import dev.kvasir.ElementType;
import dev.kvasir.Precision;
import dev.kvasir.internal.DeviceAddress;
import dev.kvasir.internal.NativeCall;
import dev.kvasir.internal.jni.Native;
import org.jspecify.annotations.Nullable;

/**
 * What a model needs on a GPU beside attention and products: see device_model.h. Memory is named by its address on the
 * device, 0 where there is none, and must hold what the sizes say; streams by their handle.
 */
public final class DeviceOperations {

  private DeviceOperations() {}

  private static @Nullable DeviceAddress at(long address) {
    return address == 0 ? null : new DeviceAddress(address);
  }

  /** Rows of bfloat16 weights by number, as float32. */
  public static void embed(long ids, long rows, long weights, long width, long out, long stream) {
    NativeCall.run(() -> Native.device_embed(at(ids), rows, at(weights), width, at(out), at(stream)));
  }

  /** Rows of float32 by number. */
  public static void gather(long in, long from, long rows, long width, long out, long stream) {
    NativeCall.run(() -> Native.device_gather(at(in), at(from), rows, width, at(out), at(stream)));
  }

  /** A norm of float32 rows, for a product. */
  public static void rmsNorm(
      long in, long weight, double epsilon, long rows, long width, Precision precision, long out, long stream) {
    NativeCall.run(
        () ->
            Native.device_rms_norm(
                at(in), at(weight), epsilon, rows, width, precision.code(), at(out), at(stream)));
  }

  /** {@code state += product + bias}, and a norm of that for a product unless the weight is 0. */
  public static void add(
      long product,
      long bias,
      long state,
      long weight,
      double epsilon,
      long rows,
      long width,
      Precision precision,
      long out,
      long stream) {
    NativeCall.run(
        () ->
            Native.device_add(
                at(product),
                at(bias),
                at(state),
                at(weight),
                epsilon,
                rows,
                width,
                precision.code(),
                at(out),
                at(stream)));
  }

  /** Cosines and sines of positions. */
  public static void ropeTurns(
      long frequencies, int headDim, double magnitude, long positions, long tokens, long turns, long stream) {
    NativeCall.run(
        () ->
            Native.device_rope_turns(
                at(frequencies), headDim, magnitude, at(positions), tokens, at(turns), at(stream)));
  }

  /** The heads of a layer. */
  public record Heads(int queryHeads, int kvHeads, int headDim, int pairs) {}

  /** A product taken apart into queries, keys and values: normed where norms are not 0, turned, rounded. */
  public static void heads(
      long product,
      long bias,
      long queryNorm,
      long keyNorm,
      double epsilon,
      long turns,
      long rows,
      Heads heads,
      boolean turnKeys,
      Precision precision,
      long queries,
      long keys,
      long values,
      long stream) {
    NativeCall.run(
        () ->
            Native.device_heads(
                at(product),
                at(bias),
                at(queryNorm),
                at(keyNorm),
                epsilon,
                at(turns),
                rows,
                heads.queryHeads(),
                heads.kvHeads(),
                heads.headDim(),
                heads.pairs(),
                turnKeys,
                precision.code(),
                at(queries),
                at(keys),
                at(values),
                at(stream)));
  }

  /** {@code silu(gate) * up} of a product of both, for a product. */
  public static void swiglu(
      long product, long bias, long rows, long width, Precision precision, long out, long stream) {
    NativeCall.run(
        () -> Native.device_swiglu(at(product), at(bias), rows, width, precision.code(), at(out), at(stream)));
  }

  /** Rows of float32, for a product. */
  public static void toProduct(long in, long rows, long width, Precision precision, long out, long stream) {
    NativeCall.run(() -> Native.device_to_product(at(in), rows, width, precision.code(), at(out), at(stream)));
  }

  /** Rows of float32 from a product. */
  public static void fromProduct(long product, long rows, long width, Precision precision, long out, long stream) {
    NativeCall.run(
        () -> Native.device_from_product(at(product), rows, width, precision.code(), at(out), at(stream)));
  }

  /** Where the highest of each row of float32 stands, as {@code int}; -1 where it is not finite. */
  public static void argmax(long in, long rows, long width, long out, long stream) {
    NativeCall.run(() -> Native.device_argmax(at(in), rows, width, at(out), at(stream)));
  }

  /** Random numbers of mean 0. */
  public static void random(long seed, double deviation, long count, ElementType type, long out, long stream) {
    NativeCall.run(() -> Native.device_random(seed, deviation, count, type.code(), at(out), at(stream)));
  }
}
