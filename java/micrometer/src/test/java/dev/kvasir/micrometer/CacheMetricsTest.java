package dev.kvasir.micrometer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
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
import java.lang.ref.WeakReference;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

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
  void tokensAreCountedWhereTheFirstLayerTakesThoseOfAnother() {
    CacheMetrics metrics = new CacheMetrics("sharing");
    KvGeometry geometry = KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(32).source(0, 1).build();
    float[] rows = Testing.gaussian(new Random(3), 20 * 64);
    try (KvCache cache = metrics.watch(Testing.cache(geometry).listener(metrics).build());
        KvSequence sequence = cache.newSequence()) {
      metrics.bindTo(registry);
      sequence.append(1, rows, rows, 20);
      sequence.append(2, rows, rows, 20);
      assertEquals(20, registry.get("kvasir.tokens").counter().count());
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
    metrics.bindTo(registry); // which has them
    assertTrue(Double.isNaN(gauge("kvasir.bits")));
  }

  @Test
  void aCacheOpenedAgainIsTheOneThatIsShown() {
    float[] rows = Testing.gaussian(new Random(4), 300 * 64);
    for (int i = 0; i < 2; i++) {
      CacheMetrics metrics = new CacheMetrics("again");
      try (KvCache cache =
              metrics.watch(Testing.cache(Testing.small()).method(Uniform.bits(2)).listener(metrics).build());
          KvSequence sequence = cache.newSequence()) {
        metrics.bindTo(registry);
        metrics.bindTo(registry);
        sequence.append(0, rows, rows, 300);
        sequence.attend(0, rows, new float[128]);
        assertEquals(1, gauge("kvasir.sequences"));
        assertEquals(300 * (i + 1), registry.get("kvasir.tokens").counter().count());
        assertEquals(cache.stats().tiles(), registry.get("kvasir.tiles").functionCounter().count());
      }
    }
  }

  @Test
  void countersOfAClosedCacheStay() throws Exception {
    CacheMetrics metrics = new CacheMetrics("closed");
    float[] rows = Testing.gaussian(new Random(5), 300 * 64);
    double tiles;
    try (KvCache cache =
            metrics.watch(Testing.cache(Testing.small()).method(Uniform.bits(2)).listener(metrics).build());
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, 300);
      sequence.attend(0, rows, new float[128]);
      metrics.bindTo(registry);
      tiles = registry.get("kvasir.tiles").functionCounter().count();
      assertTrue(tiles > 0);
    }
    Thread.sleep(1100); // statistics are kept for a second
    assertTrue(Double.isNaN(gauge("kvasir.sequences")));
    assertEquals(tiles, registry.get("kvasir.tiles").functionCounter().count());
  }

  @Test
  void registriesDoNotHoldCachesAndProbes() throws Exception {
    List<WeakReference<?>> gone = boundAndClosed();
    for (int i = 0; i < 50 && gone.stream().anyMatch(one -> one.get() != null); i++) {
      System.gc();
      Thread.sleep(20);
    }
    for (WeakReference<?> one : gone) {
      assertNull(one.get());
    }
    assertTrue(Double.isNaN(gauge("kvasir.quality.error")));
  }

  private List<WeakReference<?>> boundAndClosed() throws Exception {
    CacheMetrics metrics = new CacheMetrics("gone");
    try (KvCache cache = metrics.watch(Testing.cache(Testing.small()).listener(metrics).build());
        PrefixCache prefixes = PrefixCache.builder(cache).hostBytes(1 << 20).build();
        QualityProbe probe = QualityProbe.on(cache).name("gone").build()) {
      metrics.bindTo(registry);
      new PrefixMetrics(prefixes, "gone").bindTo(registry);
      probe.bindTo(registry);
      assertEquals(0, gauge("kvasir.quality.bytes"));
      return List.of(new WeakReference<>(cache), new WeakReference<>(prefixes), new WeakReference<>(probe));
    }
  }

  @Test
  void prefixesAndProbesOpenedAgainAreTheOnesThatAreShown() throws Exception {
    for (int i = 1; i < 3; i++) {
      try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
          PrefixCache prefixes = PrefixCache.builder(cache).hostBytes(1 << 20).build();
          QualityProbe probe = QualityProbe.on(cache).name("again").every(1).build();
          KvSequence sequence = cache.newSequence()) {
        new PrefixMetrics(prefixes, "again").bindTo(registry);
        probe.bindTo(registry);
        for (int j = 0; j < i; j++) {
          prefixes.lookup(PrefixRequest.of(new int[400])).close();
          probe.append(sequence, 0, new float[64], new float[64], 1);
        }
        assertEquals(i, registry.get("kvasir.prefix.lookups").functionCounter().count());
        assertEquals(probe.bytes(), gauge("kvasir.quality.bytes"));
        assertEquals(i, registry.get("kvasir.quality.probe").functionTimer().count());
      }
    }
  }

  @Test
  void tiersThatAreThereNoMoreAreNotShown(@TempDir Path folder) throws Exception {
    try (KvCache cache = Testing.cache(Testing.small()).build()) {
      try (PrefixCache prefixes = PrefixCache.builder(cache).folder(folder, 1 << 20).build()) {
        new PrefixMetrics(prefixes, "again").bindTo(registry);
        assertEquals(0, bytesIn("folder"));
      }
      try (PrefixCache prefixes = PrefixCache.builder(cache).build()) {
        new PrefixMetrics(prefixes, "again").bindTo(registry);
        assertNull(registry.find("kvasir.prefix.bytes").tag("tier", "folder").gauge());
        assertNull(registry.find("kvasir.prefix.read").tag("tier", "folder").functionCounter());
        assertEquals(0, bytesIn("host"));
      }
    }
  }

  private double bytesIn(String tier) {
    return registry.get("kvasir.prefix.bytes").tag("tier", tier).gauge().value();
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
