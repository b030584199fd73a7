package dev.kvasir.micrometer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Testing;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import dev.kvasir.prefix.PrefixCache;
import dev.kvasir.prefix.PrefixMatch;
import dev.kvasir.prefix.PrefixRequest;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class CacheMetricsTest {

  private final SimpleMeterRegistry registry = new SimpleMeterRegistry();

  @Test
  void metersSayWhatTheCacheSays() {
    CacheMetrics metrics = new CacheMetrics("chat");
    assertThrows(IllegalStateException.class, () -> metrics.bindTo(registry));
    float[] rows = Testing.gaussian(new Random(1), 300 * 64);
    try (KvCache cache =
        metrics.watch(Testing.cache(Testing.small()).method(Uniform.bits(2)).budgetBytes(1 << 20).listener(metrics).build())) {
      metrics.bindTo(registry);
      try (KvSequence sequence = cache.newSequence()) {
        for (int layer = 0; layer < 2; layer++) {
          sequence.append(layer, rows, rows, 300);
          sequence.attend(layer, rows, new float[128]);
        }
        assertThrows(BudgetExceededException.class, () -> sequence.reserve(1 << 20));
        KvStats stats = cache.stats();
        assertEquals(stats.total().pageBytes(), bytes("pages"));
        assertEquals(stats.total().windowBytes(), bytes("window"));
        assertEquals(stats.bytes(), bytes("pages") + bytes("window") + bytes("tables"));
        assertEquals(stats.total().bitsPerElement(), gauge("kvasir.bits"));
        assertEquals(stats.total().pageBitsPerElement(), gauge("kvasir.page.bits"));
        assertEquals(4, gauge("kvasir.pages"));
        assertEquals(1, gauge("kvasir.sequences"));
        assertEquals(1 << 20, gauge("kvasir.budget"));
        assertEquals(300, registry.get("kvasir.tokens").tag("cache", "chat").counter().count());
        assertEquals(2, registry.get("kvasir.append").timer().count());
        assertEquals(2, registry.get("kvasir.attend").timer().count());
        assertTrue(registry.get("kvasir.append").timer().totalTime(TimeUnit.NANOSECONDS) > 0);
        assertEquals(1, registry.get("kvasir.refusals").counter().count());
        assertEquals(stats.tiles(), registry.get("kvasir.tiles").functionCounter().count());
      }
    }
  }

  @Test
  void pagesThatGiveUpBitsAreCounted() {
    CacheMetrics metrics = new CacheMetrics("shrinking");
    float[] rows = Testing.gaussian(new Random(2), 128 * 64);
    try (KvCache cache =
            metrics.watch(Testing.cache(Testing.small()).method(PmKvq.floor(2)).budgetBytes(200_000).listener(metrics).build());
        KvSequence sequence = cache.newSequence()) {
      for (int i = 0; i < 8; i++) {
        for (int layer = 0; layer < 2; layer++) {
          sequence.append(layer, rows, rows, 128);
        }
      }
      metrics.bindTo(registry);
      KvStats.Shrinks shrinks = cache.stats().total().shrinks();
      assertTrue(shrinks.count() > 0, "the test wants a budget that shrinks pages");
      assertEquals(shrinks.count(), registry.get("kvasir.shrinks").functionCounter().count());
      assertEquals(shrinks.freedBytes(), registry.get("kvasir.shrinks.bytes").functionCounter().count());
    }
  }

  @Test
  void gaugesOfAClosedCacheAreNoNumbers() {
    CacheMetrics metrics = new CacheMetrics("closed");
    KvCache cache = metrics.watch(Testing.cache(Testing.small()).listener(metrics).build());
    metrics.bindTo(registry);
    cache.close();
    assertTrue(Double.isNaN(gauge("kvasir.bits")));
  }

  @Test
  void prefixesThatWereKnownAreCounted() throws Exception {
    int[] tokens = new int[400];
    float[] rows = Testing.gaussian(new Random(3), 400 * 64);
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
        PrefixCache prefixes = PrefixCache.builder(cache).hostBytes(1 << 20).build()) {
      for (int i = 0; i < 2; i++) {
        try (PrefixMatch match = prefixes.lookup(PrefixRequest.of(tokens))) {
          int left = 400 - match.reusedTokens();
          for (int layer = 0; layer < 2; layer++) {
            match.sequence().append(layer, rows, rows, left);
          }
          prefixes.publish(match.sequence(), PrefixRequest.of(tokens)).get();
        }
      }
      new PrefixMetrics(prefixes, "chat").bindTo(registry);
      assertEquals(2, registry.get("kvasir.prefix.lookups").functionCounter().count());
      assertEquals(1, registry.get("kvasir.prefix.hits").functionCounter().count());
      double reused = registry.get("kvasir.prefix.tokens").tag("kind", "reused").functionCounter().count();
      assertEquals(prefixes.stats().tokensReused(), reused);
      assertTrue(reused > 0);
      assertTrue(registry.get("kvasir.prefix.bytes").tag("tier", "host").gauge().value() > 0);
    }
  }

  private double bytes(String kind) {
    return registry.get("kvasir.bytes").tag("kind", kind).gauge().value();
  }

  private double gauge(String name) {
    return registry.get(name).gauge().value();
  }
}
