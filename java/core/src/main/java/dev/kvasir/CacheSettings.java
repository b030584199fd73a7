package dev.kvasir;

import dev.kvasir.internal.ConfigPart;
import dev.kvasir.internal.NativeCache;
import dev.kvasir.internal.NativeCall;
import dev.kvasir.internal.NativeLibrary;
import dev.kvasir.internal.jni.CacheConfig;
import dev.kvasir.internal.jni.CacheEstimate;
import dev.kvasir.internal.jni.Native;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Everything that is decided before a cache exists.
 *
 * @param geometry its shape
 * @param method how it compresses
 * @param budget bytes; 0 for no limit
 * @param layerBudgets bytes by layer, for those that have a limit
 * @param backend a backend's name, or "auto"
 * @param precision of attention
 * @param threads of its own; 0 for the library's
 * @param model the fingerprint of the model, or nothing
 */
record CacheSettings(
    KvGeometry geometry,
    KvMethod method,
    long budget,
    Map<Integer, Long> layerBudgets,
    String backend,
    Precision precision,
    int threads,
    byte[] model) {

  /** A new cache, whose calls the listener is told of. */
  NativeCache create(@Nullable KvListener listener) {
    return NativeCache.create(
        geometry.layers(), this::apply, listener == null ? null : new ListenerGuard(listener));
  }

  /** What sequences of such a cache would take. */
  KvEstimate estimate(long prompt, long decoded, long sequences) {
    return NativeCache.estimate(
        geometry.layers(),
        this::apply,
        prompt,
        decoded,
        one ->
            new KvEstimate(
                sequences,
                prompt + decoded,
                read(one, Native.kAllLayers(), sequences),
                IntStream.range(0, geometry.layers())
                    .mapToObj(layer -> read(one, layer, sequences))
                    .collect(Collectors.toList())));
  }

  private static KvEstimate.Layer read(CacheEstimate one, int layer, long sequences) {
    long elements = one.elements(layer);
    return new KvEstimate.Layer(
        times(sequences, one.bytes(layer)),
        times(sequences, one.least_bytes(layer)),
        times(sequences, one.pages(layer)),
        times(sequences, one.page_bytes(layer)),
        times(sequences, one.window_bytes(layer)),
        times(sequences, one.table_bytes(layer)),
        one.codebook_bytes(layer),
        elements == 0 ? 0 : 8.0 * one.bytes(layer) / elements);
  }

  private static long times(long sequences, long each) {
    try {
      return Math.multiplyExact(sequences, each);
    } catch (ArithmeticException e) {
      throw new IllegalArgumentException(sequences + " sequences of " + each + " bytes: no number holds that", e);
    }
  }

  private void apply(CacheConfig config) {
    Set<String> trained =
        Catalog.codecs().stream().filter(CodecInfo::trained).map(CodecInfo::name).collect(Collectors.toSet());
    for (int layer = 0; layer < geometry.layers(); layer++) {
      if (geometry.latent(layer)) {
        config.set_latent(layer, geometry.queryHeads(layer), geometry.headDim(layer), geometry.valueDim(layer));
      } else {
        config.set_heads(layer, geometry.queryHeads(layer), geometry.kvHeads(layer), geometry.headDim(layer));
      }
      config.set_sliding_window(layer, geometry.slidingWindow(layer));
      config.set_softmax_scale(layer, geometry.softmaxScale(layer));
      config.set_soft_cap(layer, geometry.softCap(layer));
      applySinks(config, layer, geometry.sinkLogits(layer));
      config.set_source(layer, geometry.source(layer));
      if (geometry.source(layer) != layer) {
        continue;
      }
      applySide(config, layer, Side.KEYS, method.keys(layer), trained);
      applySide(config, layer, Side.VALUES, method.values(layer), trained);
      applyScaling(config, layer, method.keyScaling(layer));
    }
    config.set_window(method.window());
    config.set_sinks(method.sinks());
    config.set_budget(budget);
    config.set_shrink_policy(method.shrinkPolicy().code());
    layerBudgets.forEach(config::set_layer_budget);
    config.set_backend(backend.equals("auto") ? NativeLibrary.get().defaultBackend() : backend);
    config.set_precision(precision.code());
    config.set_threads(threads);
    NativeCall.runWith(memory -> config.set_model(memory.in(model), model.length));
  }

  private static void applySinks(CacheConfig config, int layer, List<Float> logits) {
    float[] array = new float[logits.size()];
    for (int i = 0; i < array.length; i++) {
      array[i] = logits.get(i);
    }
    NativeCall.runWith(memory -> config.set_sink_logits(layer, memory.in(array), array.length));
  }

  private static void applyScaling(CacheConfig config, int layer, float[] scaling) {
    NativeCall.runWith(memory -> config.set_key_scaling(layer, memory.in(scaling), scaling.length));
  }

  private void applySide(CacheConfig config, int layer, Side side, CodecChoice choice, Set<String> trained) {
    config.set_codec(layer, side.code(), choice.codec(), choice.bits());
    choice.options().forEach((name, value) -> config.set_option(layer, side.code(), name, value));
    KvMethod.Codebook codebook = method.codebook(layer, side).orElse(null);
    if (codebook instanceof ConfigPart part) {
      part.applyTo(config, layer);
    } else if (codebook != null || trained.contains(choice.codec())) {
      throw new IllegalArgumentException(
          "layer " + layer + ", " + side + ": codec " + choice.codec() + " of method " + method.name()
              + (codebook == null ? " needs a codebook, and the method has none" : " came with " + codebook)
              + "; codebooks are those of CommVq and Spectral, which methods that wrap them pass on");
    }
  }
}
