package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.method.Uniform;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.Test;

class KvStatsTest {

  private final float[] rows = Testing.gaussian(new Random(8), 300 * 64);

  @Test
  void anEmptyCacheHoldsNothing() {
    try (KvCache cache = Testing.cache(Testing.small()).build()) {
      KvStats stats = cache.stats();
      assertEquals(0, stats.sequences());
      assertEquals(0, stats.bytes());
      assertEquals(0, stats.budgetBytes());
      KvStats.Shrinks none = new KvStats.Shrinks(0, 0, Duration.ZERO, List.of());
      assertEquals(new KvStats.Layer(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, none, 0, 0, Map.of(), Map.of(), 0, 0), stats.total());
      assertEquals(2, stats.layers().size());
      assertEquals(0, stats.tiles());
    }
  }

  @Test
  void bytesAreThoseOfTheFormat() {
    // d = 32, 2 kv heads. Keys per channel: 128 bytes of parameters + 1024 of codes; values per token: 512 + 1024.
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, 300);
      KvStats stats = cache.stats();
      KvStats.Layer layer = stats.layers().get(0);
      assertEquals(2, layer.pages());
      assertEquals(2 * 2 * (128 + 1024 + 512 + 1024), layer.pageBytes());
      assertEquals(2 + (0.25 + 1) / 2, layer.pageBitsPerElement(), 1e-9);
      assertEquals(layer.pageBytes() + layer.windowBytes(), layer.bytes());
      assertEquals(layer.bytes() * 8.0 / (2 * 300 * 64), layer.bitsPerElement(), 1e-9);
      assertEquals(layer, stats.total());
      assertEquals(layer.bytes(), stats.bytes());
      assertEquals(sequence.readPage(0, 0, Side.KEYS, 0).length, 128 + 1024);
      assertEquals(sequence.readPage(0, 1, Side.VALUES, 1).length, 512 + 1024);
    }
  }

  @Test
  void peakIsTheMostThatWasHeld() {
    try (KvCache cache = Testing.cache(Testing.small()).build()) {
      KvSequence sequence = cache.newSequence();
      sequence.append(0, rows, rows, 300);
      long held = cache.stats().bytes();
      sequence.close();
      assertEquals(0, cache.stats().bytes());
      assertEquals(held, cache.stats().peakBytes());
    }
  }

  @Test
  void attentionIsCounted() {
    try (KvCache cache = Testing.cache(Testing.small()).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, 300);
      sequence.attend(0, rows, new float[128]);
      assertTrue(cache.stats().tiles() > 0);
      assertTrue(cache.stats().fallbackTiles() <= cache.stats().tiles());
    }
  }

  @Test
  void theBackendIsTheOneThatWasAskedFor() {
    for (BackendInfo backend : Kvasir.backends()) {
      if (backend.available()) {
        try (KvCache cache = KvCache.builder(Testing.small()).backend(backend.name()).build()) {
          assertEquals(backend.name(), cache.stats().backend());
        }
      }
    }
    try (KvCache cache = KvCache.builder(Testing.small()).build()) {
      assertEquals(Kvasir.defaultBackend(), cache.stats().backend());
    }
  }
}
