package dev.kvasir.internal.codebook;

import dev.kvasir.internal.jni.ValueEncoder;

/** See ValueEncoder in commvq.h. Sizes of arrays have been checked by callers. */
public final class NativeValueEncoder extends NativeObject<ValueEncoder> {

  public NativeValueEncoder(
      int width,
      int hidden,
      int codes,
      float[] scale,
      float[] normWeight,
      float[] normBias,
      float[] firstWeight,
      float[] firstBias,
      float[] secondWeight,
      float[] secondBias) {
    super(
        "the value encoder",
        memory ->
            ValueEncoder.create(
                width,
                hidden,
                codes,
                memory.in(scale),
                memory.in(normWeight),
                memory.in(normBias),
                memory.in(firstWeight),
                memory.in(firstBias),
                memory.in(secondWeight),
                memory.in(secondBias)),
        ValueEncoder::destroy);
  }
}
