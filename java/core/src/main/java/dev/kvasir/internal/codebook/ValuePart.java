package dev.kvasir.internal.codebook;

import dev.kvasir.KvMethod;
import dev.kvasir.internal.ConfigPart;
import dev.kvasir.internal.jni.CacheConfig;
import org.jspecify.annotations.Nullable;

/** The codebook of a layer's values, with its encoder if it has one. */
public record ValuePart(NativeValueCodebook codebook, @Nullable NativeValueEncoder encoder, int flips)
    implements KvMethod.Codebook, ConfigPart {

  @Override
  public void applyTo(CacheConfig config, int layer) {
    if (encoder == null) {
      codebook.run(target -> config.set_value_codebook(layer, target));
    } else {
      codebook.run(table -> encoder.run(network -> config.set_value_codebook(layer, table, network, flips)));
    }
  }
}
