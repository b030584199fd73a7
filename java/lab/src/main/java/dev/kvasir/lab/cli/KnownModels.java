package dev.kvasir.lab.cli;

import dev.kvasir.KvGeometry;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.IntPredicate;

/** Shapes of well-known models' attention, by the names that people call them. */
final class KnownModels {

  private static final Map<String, KvGeometry> MODELS = new LinkedHashMap<>();

  static {
    plain("llama-2-7b", 32, 32, 32, 128);
    plain("llama-2-13b", 40, 40, 40, 128);
    plain("llama-2-70b", 80, 64, 8, 128);
    plain("llama-3.1-8b", 32, 32, 8, 128);
    plain("llama-3.1-70b", 80, 64, 8, 128);
    plain("llama-3.1-405b", 126, 128, 8, 128);
    plain("llama-3.2-1b", 16, 32, 8, 64);
    plain("llama-3.2-3b", 28, 24, 8, 128);
    plain("llama-3.3-70b", 80, 64, 8, 128);
    plain("tinyllama-1.1b", 22, 32, 4, 64);
    plain("mistral-7b", 32, 32, 8, 128);
    plain("mistral-nemo-12b", 40, 32, 8, 128);
    plain("mistral-small-24b", 40, 32, 8, 128);
    plain("mixtral-8x7b", 32, 32, 8, 128);
    plain("qwen2.5-0.5b", 24, 14, 2, 64);
    plain("qwen2.5-1.5b", 28, 12, 2, 128);
    plain("qwen2.5-3b", 36, 16, 2, 128);
    plain("qwen2.5-7b", 28, 28, 4, 128);
    plain("qwen2.5-14b", 48, 40, 8, 128);
    plain("qwen2.5-32b", 64, 40, 8, 128);
    plain("qwen2.5-72b", 80, 64, 8, 128);
    plain("qwen3-0.6b", 28, 16, 8, 128);
    plain("qwen3-1.7b", 28, 16, 8, 128);
    plain("qwen3-4b", 36, 32, 8, 128);
    plain("qwen3-8b", 36, 32, 8, 128);
    plain("qwen3-14b", 40, 40, 8, 128);
    plain("qwen3-32b", 64, 64, 8, 128);
    plain("qwen3-30b-a3b", 48, 32, 4, 128);
    plain("qwen3-235b-a22b", 94, 64, 4, 128);
    plain("phi-3-mini", 32, 32, 32, 96);
    plain("phi-4", 40, 40, 10, 128);
    // Every other layer slides, the first among them.
    sliding("gemma-2-2b", 26, 8, 4, 256, 4096, layer -> layer % 2 == 0);
    sliding("gemma-2-9b", 42, 16, 8, 256, 4096, layer -> layer % 2 == 0);
    sliding("gemma-2-27b", 46, 32, 16, 128, 4096, layer -> layer % 2 == 0);
    sliding("gpt-oss-20b", 24, 64, 8, 64, 128, layer -> layer % 2 == 0);
    sliding("gpt-oss-120b", 36, 64, 8, 64, 128, layer -> layer % 2 == 0);
    // Five slide, the sixth sees all.
    sliding("gemma-3-1b", 26, 4, 1, 256, 512, layer -> layer % 6 != 5);
    sliding("gemma-3-4b", 34, 8, 4, 256, 1024, layer -> layer % 6 != 5);
    sliding("gemma-3-12b", 48, 16, 8, 256, 1024, layer -> layer % 6 != 5);
    sliding("gemma-3-27b", 62, 32, 16, 128, 1024, layer -> layer % 6 != 5);
    latent("deepseek-v2-lite", 27, 16);
    latent("deepseek-v3", 61, 128);
    latent("deepseek-r1", 61, 128);
  }

  private KnownModels() {}

  /** All of them. */
  static Set<String> names() {
    return MODELS.keySet();
  }

  /** The shape of one of them, whatever the case of its name. */
  static Optional<KvGeometry> find(String name) {
    return Optional.ofNullable(MODELS.get(name.toLowerCase(Locale.ROOT)));
  }

  private static KvGeometry.Builder shape(int layers, int queryHeads, int kvHeads, int headDim) {
    return KvGeometry.builder().layers(layers).queryHeads(queryHeads).kvHeads(kvHeads).headDim(headDim);
  }

  private static void plain(String name, int layers, int queryHeads, int kvHeads, int headDim) {
    MODELS.put(name, shape(layers, queryHeads, kvHeads, headDim).build());
  }

  private static void sliding(
      String name, int layers, int queryHeads, int kvHeads, int headDim, int window, IntPredicate slides) {
    KvGeometry.Builder shape = shape(layers, queryHeads, kvHeads, headDim);
    for (int layer = 0; layer < layers; layer++) {
      if (slides.test(layer)) {
        shape.slidingWindow(layer, window);
      }
    }
    MODELS.put(name, shape.build());
  }

  /** Rows of 512 channels that keys and values share, and 64 more of keys for RoPE. */
  private static void latent(String name, int layers, int queryHeads) {
    MODELS.put(name, KvGeometry.builder().layers(layers).queryHeads(queryHeads).latent(576, 512).build());
  }
}
