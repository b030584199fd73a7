package dev.kvasir.internal;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.Precision;
import dev.kvasir.ShrinkPolicy;
import dev.kvasir.internal.commvq.TrainedMethod;
import dev.kvasir.internal.jni.CacheConfig;
import dev.kvasir.internal.jni.Native;
import java.util.Map;

/**
 * Everything that is decided before a cache exists.
 *
 * @param geometry its shape
 * @param method how it compresses
 * @param budget bytes; 0 for no limit
 * @param layerBudgets bytes by layer, for those that have a limit
 * @param backend a backend's name, or "auto"
 * @param precision of attention
 */
public record CacheSettings(
    KvGeometry geometry,
    KvMethod method,
    long budget,
    Map<Integer, Long> layerBudgets,
    String backend,
    Precision precision) {

  /** A new cache. */
  public NativeCache create() {
    return NativeCache.create(geometry.layers(), this::apply);
  }

  private void apply(CacheConfig config) {
    for (int layer = 0; layer < geometry.layers(); layer++) {
      config.set_heads(layer, geometry.queryHeads(layer), geometry.kvHeads(layer), geometry.headDim(layer));
      config.set_sliding_window(layer, geometry.slidingWindow(layer));
      config.set_softmax_scale(layer, geometry.softmaxScale(layer));
      applySide(config, layer, Native.kKeys, method.keys(layer));
      applySide(config, layer, Native.kValues, method.values(layer));
      float[] scaling = method.keyScaling(layer);
      config.set_key_scaling(layer, scaling, scaling.length);
      if (method instanceof TrainedMethod trained) {
        trained.model(layer).applyTo(config, layer);
      }
    }
    config.set_window(method.window());
    config.set_sinks(method.sinks());
    config.set_budget(budget);
    config.set_shrink_policy(method.shrinkPolicy() == ShrinkPolicy.OLDEST ? Native.kOldest : Native.kLayer);
    layerBudgets.forEach(config::set_layer_budget);
    config.set_backend(backend.equals("auto") ? NativeLibrary.get().defaultBackend() : backend);
    config.set_precision(precision == Precision.EXACT ? Native.kExact : Native.kFast);
  }

  private static void applySide(CacheConfig config, int layer, int side, CodecChoice choice) {
    config.set_codec(layer, side, choice.codec(), choice.bits());
    choice.options().forEach((name, value) -> config.set_option(layer, side, name, value));
  }
}
