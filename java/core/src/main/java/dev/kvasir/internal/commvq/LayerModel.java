package dev.kvasir.internal.commvq;

import dev.kvasir.internal.jni.CacheConfig;
import org.jspecify.annotations.Nullable;

/** The codebooks of a layer and the RoPE of its model. A codebook that is null is not set. */
public record LayerModel(
    int pairs,
    double[] frequencies,
    double magnitude,
    @Nullable NativeKeyCodebook keys,
    int refinements,
    @Nullable NativeValueCodebook values,
    @Nullable NativeValueEncoder encoder,
    int flips) {

  public void applyTo(CacheConfig config, int layer) {
    config.set_rope(layer, pairs, frequencies, frequencies.length, magnitude);
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
