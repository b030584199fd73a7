package dev.kvasir;

import dev.kvasir.internal.jni.CacheStats;
import dev.kvasir.internal.jni.Native;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** Copies a native snapshot. */
final class StatsReader {

  private static final int MAX_BITS = 16;

  private StatsReader() {}

  static KvStats read(CacheStats stats, int layers) {
    List<KvStats.Layer> each =
        IntStream.range(0, layers).mapToObj(layer -> layer(stats, layer)).collect(Collectors.toUnmodifiableList());
    return new KvStats(
        stats.sequences(),
        stats.budget(),
        stats.bytes(),
        stats.peak_bytes(),
        stats.backend(),
        stats.tiles(),
        stats.fallback_tiles(),
        layer(stats, Native.kAllLayers()),
        each);
  }

  private static KvStats.Layer layer(CacheStats stats, int layer) {
    return new KvStats.Layer(
        stats.layer_bytes(layer),
        stats.pages(layer),
        stats.page_bytes(layer),
        stats.window_bytes(layer),
        stats.table_bytes(layer),
        stats.page_bits_per_element(layer),
        stats.bits_per_element(layer),
        stats.table_use(layer, Native.kKeys),
        stats.table_use(layer, Native.kValues),
        stats.parts_without_table(layer, Native.kKeys),
        stats.parts_without_table(layer, Native.kValues),
        stats.code_bits(layer, Native.kKeys),
        stats.code_bits(layer, Native.kValues),
        shrinks(stats, layer),
        stats.side_bits_per_element(layer, Native.kKeys),
        stats.side_bits_per_element(layer, Native.kValues),
        channels(stats, layer, Native.kKeys),
        channels(stats, layer, Native.kValues),
        stats.codebook_bytes(layer),
        stats.bits_per_element_with_codebooks(layer));
  }

  private static Map<Integer, Long> channels(CacheStats stats, int layer, int side) {
    Map<Integer, Long> channels = new TreeMap<>();
    for (int bits = 0; bits <= MAX_BITS; bits++) {
      long count = stats.channels(layer, side, bits);
      if (count > 0) {
        channels.put(bits, count);
      }
    }
    return Collections.unmodifiableMap(channels);
  }

  private static KvStats.Shrinks shrinks(CacheStats stats, int layer) {
    List<KvStats.Step> steps =
        IntStream.range(0, stats.steps(layer))
            .mapToObj(step -> new KvStats.Step(stats.step_bits(layer, step), stats.step_pages(layer, step)))
            .collect(Collectors.toUnmodifiableList());
    return new KvStats.Shrinks(
        stats.shrinks(layer), stats.shrunk_bytes(layer), Duration.ofNanos(stats.shrink_nanoseconds(layer)), steps);
  }
}
