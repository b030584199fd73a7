package dev.kvasir.internal.codebook;

import dev.kvasir.KvMethod;
import dev.kvasir.internal.ConfigPart;
import dev.kvasir.internal.NativeCall;
import dev.kvasir.internal.jni.CacheConfig;
import org.jspecify.annotations.Nullable;

/** What a cache must know to store a layer's keys before RoPE; without a codebook they stay in 16 bits. */
public record KeyPart(
    int pairs, double[] frequencies, double magnitude, @Nullable NativeKeyCodebook codebook, int refinements)
    implements KvMethod.Codebook, ConfigPart {

  @Override
  public void applyTo(CacheConfig config, int layer) {
    NativeCall.runWith(
        memory -> config.set_rope(layer, pairs, memory.in(frequencies), frequencies.length, magnitude));
    if (codebook != null) {
      codebook.run(target -> config.set_key_codebook(layer, target, refinements));
    }
  }
}
