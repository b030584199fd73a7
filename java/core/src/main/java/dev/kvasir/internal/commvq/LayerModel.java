package dev.kvasir.internal.commvq;

import dev.kvasir.internal.jni.CacheConfig;
import org.jspecify.annotations.Nullable;

/**
 * The codebooks of a layer and the RoPE of its model. A codebook that is null is not set, nor is a RoPE without
 * frequencies: keys are then stored after it.
 */
public record LayerModel(
    int pairs,
    double[] frequencies,
    double magnitude,
    @Nullable NativeKeyCodebook keys,
    int refinements,
    @Nullable NativeValueCodebook values,
    @Nullable NativeValueEncoder encoder,
    int flips) {

  /** What one method brings for keys, with what another brings for values; null where a method brings nothing. */
  public static LayerModel mixed(@Nullable LayerModel keys, @Nullable LayerModel values) {
    return new LayerModel(
        keys == null ? 0 : keys.pairs,
        keys == null ? new double[0] : keys.frequencies,
        keys == null ? 1 : keys.magnitude,
        keys == null ? null : keys.keys,
        keys == null ? 0 : keys.refinements,
        values == null ? null : values.values,
        values == null ? null : values.encoder,
        values == null ? 0 : values.flips);
  }

  public void applyTo(CacheConfig config, int layer) {
    if (frequencies.length > 0) {
      config.set_rope(layer, pairs, frequencies, frequencies.length, magnitude);
    }
    if (keys != null) {
      keys.run(target -> config.set_key_codebook(layer, target, refinements));
    }
    if (values != null && encoder != null) {
      values.run(
          codebook -> encoder.run(target -> config.set_value_codebook(layer, codebook, target, flips)));
    } else if (values != null) {
      values.run(target -> config.set_value_codebook(layer, target));
    }
  }
}
