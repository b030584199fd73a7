package dev.kvasir.micrometer;

import dev.kvasir.prefix.PrefixCache;
import dev.kvasir.prefix.PrefixStats;
import dev.kvasir.prefix.Tier;
import dev.kvasir.prefix.TierStats;
import io.micrometer.core.instrument.FunctionCounter;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tags;
import io.micrometer.core.instrument.binder.MeterBinder;
import java.lang.ref.WeakReference;
import java.util.List;
import java.util.Locale;
import java.util.function.ToDoubleFunction;

/**
 * Meters of a prefix cache: what was asked and known, and of each tier what it gave, holds and failed at. Needs the artifact
 * {@code kvasir-prefix}.
 */
public final class PrefixMetrics implements MeterBinder {

  private static final List<String> OF_TIERS =
      List.of(
          "kvasir.prefix.bytes",
          "kvasir.prefix.blocks",
          "kvasir.prefix.misses",
          "kvasir.prefix.read",
          "kvasir.prefix.written",
          "kvasir.prefix.failures",
          "kvasir.prefix.rejected");

  private final Tags tags;

  /** Weak, since registries hold their meters for ever. */
  private final WeakReference<PrefixCache> prefixes;

  private final Snapshot<PrefixStats> stats;

  /**
   * Meters of a prefix cache.
   *
   * @param prefixes the prefix cache
   * @param name the value of the tag {@code cache}
   */
  public PrefixMetrics(PrefixCache prefixes, String name) {
    this.tags = Tags.of("cache", name);
    this.prefixes = new WeakReference<>(prefixes);
    this.stats = new Snapshot<>(this::now);
  }

  @Override
  public void bindTo(MeterRegistry registry) {
    counter(registry, "kvasir.prefix.lookups", tags, PrefixStats::lookups);
    counter(registry, "kvasir.prefix.hits", tags, PrefixStats::hits);
    counter(registry, "kvasir.prefix.tokens", tags.and("kind", "asked"), PrefixStats::tokensAsked);
    counter(registry, "kvasir.prefix.tokens", tags.and("kind", "reused"), PrefixStats::tokensReused);
    counter(registry, "kvasir.prefix.published", tags, PrefixStats::published);
    counter(registry, "kvasir.prefix.dropped", tags, PrefixStats::dropped);
    for (Tier tier : Tier.values()) { // one of the same name may have had others
      for (String name : OF_TIERS) {
        Names.free(registry, name, tagsOf(tier));
      }
    }
    for (Tier tier : now().tiers().keySet()) {
      bindTier(registry, tier);
    }
  }

  private Tags tagsOf(Tier tier) {
    return tags.and("tier", tier.name().toLowerCase(Locale.ROOT));
  }

  private PrefixStats now() {
    PrefixCache known = prefixes.get();
    if (known == null) {
      throw new IllegalStateException("the prefix cache is gone");
    }
    return known.stats();
  }

  private void bindTier(MeterRegistry registry, Tier tier) {
    Tags here = tagsOf(tier);
    Gauge.builder("kvasir.prefix.bytes", stats, s -> s.value(of(tier, t -> known(t.holdings().bytes()))))
        .tags(here)
        .baseUnit("bytes")
        .description("Bytes held; NaN where that is not known")
        .strongReference(true)
        .register(registry);
    counter(registry, "kvasir.prefix.blocks", here, of(tier, TierStats::hits));
    counter(registry, "kvasir.prefix.misses", here, of(tier, TierStats::misses));
    counter(registry, "kvasir.prefix.read", here, of(tier, TierStats::bytesRead));
    counter(registry, "kvasir.prefix.written", here, of(tier, TierStats::bytesWritten));
    counter(registry, "kvasir.prefix.failures", here, of(tier, TierStats::failures));
    counter(registry, "kvasir.prefix.rejected", here, of(tier, TierStats::rejected));
  }

  private void counter(MeterRegistry registry, String name, Tags with, ToDoubleFunction<PrefixStats> value) {
    Names.free(registry, name, with);
    FunctionCounter.builder(name, stats, s -> s.count(value)).tags(with).register(registry);
  }

  private static ToDoubleFunction<PrefixStats> of(Tier tier, ToDoubleFunction<TierStats> value) {
    return all -> {
      TierStats stats = all.tiers().get(tier);
      return stats == null ? 0 : value.applyAsDouble(stats);
    };
  }

  private static double known(long number) {
    return number < 0 ? Double.NaN : number;
  }
}
