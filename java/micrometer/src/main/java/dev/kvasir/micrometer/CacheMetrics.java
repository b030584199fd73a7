package dev.kvasir.micrometer;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvListener;
import dev.kvasir.KvStats;
import dev.kvasir.error.BudgetExceededException;
import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.FunctionCounter;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tags;
import io.micrometer.core.instrument.Timer;
import io.micrometer.core.instrument.binder.MeterBinder;
import java.lang.ref.WeakReference;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.function.ToDoubleFunction;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Meters of one cache. It listens to the cache, so it is made before it:
 *
 * <pre>{@code
 * CacheMetrics metrics = new CacheMetrics("chat");
 * KvCache cache = metrics.watch(KvCache.builder(geometry).method(method).listener(metrics).build());
 * metrics.bindTo(registry);
 * }</pre>
 *
 * <p>All meters have the tag {@code cache}. Gauges ask the cache for its statistics, at most once a second; those of a cache that
 * was closed are NaN, and its counters stay where they were. Calls cost two readings of the clock and an addition more than without.
 */
public final class CacheMetrics implements MeterBinder, KvListener {

  private final Tags tags;
  private final Snapshot<KvStats> stats;
  private final List<Meters> bound = new CopyOnWriteArrayList<>();

  /** Weak, since registries hold their meters for ever. */
  private volatile @Nullable WeakReference<KvCache> cache;

  /** The layer whose tokens are counted: the first that gets any. */
  private volatile int counted;

  /**
   * Meters of a cache to come.
   *
   * @param name the value of the tag {@code cache}
   */
  public CacheMetrics(String name) {
    this.tags = Tags.of("cache", name);
    this.stats = new Snapshot<>(() -> watched().stats());
  }

  /**
   * Says which cache it is, whose builder got this as its listener.
   *
   * @param cache the cache
   * @return the same cache
   */
  public KvCache watch(KvCache cache) {
    KvGeometry geometry = cache.geometry();
    IntStream layers = IntStream.range(0, geometry.layers());
    this.counted = layers.filter(layer -> geometry.source(layer) == layer).min().orElse(0);
    this.cache = new WeakReference<>(cache);
    return cache;
  }

  /**
   * Adds the meters to a registry; there may be several. Gauges of another cache of the same name, which has been closed,
   * make room. Does nothing where the registry has them already.
   *
   * @param registry the registry
   * @throws IllegalStateException if no cache is watched
   */
  @Override
  public synchronized void bindTo(MeterRegistry registry) {
    if (bound.stream().anyMatch(meters -> meters.registry == registry)) {
      return;
    }
    KvStats now = watched().stats();
    String tier = now.backend().equals("cuda") ? "device" : "host";
    bytes(registry, tier, "pages", s -> s.total().pageBytes());
    bytes(registry, tier, "window", s -> s.total().windowBytes());
    bytes(registry, tier, "tables", s -> s.total().tableBytes());
    bytes(registry, tier, "codebooks", s -> s.total().codebookBytes());
    gauge(registry, "kvasir.budget", "bytes", "The byte budget; 0 for none", KvStats::budgetBytes);
    gauge(registry, "kvasir.peak", "bytes", "The most bytes that were ever held", KvStats::peakBytes);
    gauge(registry, "kvasir.sequences", null, "Open sequences", KvStats::sequences);
    gauge(registry, "kvasir.pages", null, "Compressed pages of 128 tokens, by layer", s -> s.total().pages());
    gauge(registry, "kvasir.bits", "bits", "Bits an element over everything held", s -> s.total().bitsPerElement());
    gauge(registry, "kvasir.page.bits", "bits", "Bits an element of pages", s -> s.total().pageBitsPerElement());
    counter(registry, "kvasir.tiles", "Pieces of attention on the chosen kernels", KvStats::tiles);
    counter(registry, "kvasir.tiles.fallback", "Pieces of attention on slower kernels", KvStats::fallbackTiles);
    counter(registry, "kvasir.shrinks", "Pages that gave up half their bits", s -> s.total().shrinks().count());
    counter(registry, "kvasir.shrinks.bytes", "Bytes that this freed", s -> s.total().shrinks().freedBytes());
    bound.add(new Meters(registry, tags));
  }

  private KvCache watched() {
    WeakReference<KvCache> known = cache;
    KvCache found = known == null ? null : known.get();
    if (found == null) {
      throw new IllegalStateException("no cache is watched");
    }
    return found;
  }

  @Override
  public void appended(int layer, int tokens, long nanos) {
    for (Meters meters : bound) {
      meters.append.record(nanos, TimeUnit.NANOSECONDS);
      if (layer == counted) {
        meters.tokens.increment(tokens);
      }
    }
  }

  @Override
  public void attended(int layer, int sequences, int tokens, long nanos) {
    for (Meters meters : bound) {
      meters.attend.record(nanos, TimeUnit.NANOSECONDS);
    }
  }

  @Override
  public void refused(BudgetExceededException refusal) {
    for (Meters meters : bound) {
      meters.refusals.increment();
    }
  }

  private void bytes(MeterRegistry registry, String tier, String kind, ToDoubleFunction<KvStats> value) {
    for (String any : List.of("device", "host")) { // one of the same name may have been elsewhere
      Names.free(registry, "kvasir.bytes", tags.and("tier", any, "kind", kind));
    }
    Gauge.builder("kvasir.bytes", stats, s -> s.value(value))
        .tags(tags.and("tier", tier, "kind", kind))
        .baseUnit("bytes")
        .description("Bytes held")
        .strongReference(true)
        .register(registry);
  }

  private void gauge(
      MeterRegistry registry, String name, @Nullable String unit, String text, ToDoubleFunction<KvStats> value) {
    Names.free(registry, name, tags);
    Gauge.builder(name, stats, s -> s.value(value))
        .tags(tags)
        .baseUnit(unit)
        .description(text)
        .strongReference(true)
        .register(registry);
  }

  private void counter(MeterRegistry registry, String name, String text, ToDoubleFunction<KvStats> value) {
    Names.free(registry, name, tags);
    FunctionCounter.builder(name, stats, s -> s.count(value)).tags(tags).description(text).register(registry);
  }

  /** What calls write to, in one registry. */
  private static final class Meters {
    final MeterRegistry registry;
    final Timer append;
    final Timer attend;
    final Counter tokens;
    final Counter refusals;

    Meters(MeterRegistry registry, Tags tags) {
      this.registry = registry;
      append = Timer.builder("kvasir.append").tags(tags).description("Appends of one layer").register(registry);
      attend = Timer.builder("kvasir.attend").tags(tags).description("Attention of one layer").register(registry);
      tokens = Counter.builder("kvasir.tokens").tags(tags).description("Tokens appended").register(registry);
      refusals = Counter.builder("kvasir.refusals").tags(tags).description("Calls that the budget refused").register(registry);
    }
  }
}
