/**
 * Meters for <a href="https://micrometer.io">Micrometer</a>: {@link dev.kvasir.micrometer.CacheMetrics} of a cache, {@link
 * dev.kvasir.micrometer.PrefixMetrics} of a prefix cache, {@link dev.kvasir.micrometer.QualityProbe} of what compression costs
 * attention right now. {@code docs/metrics.md} lists them.
 */
@NullMarked
package dev.kvasir.micrometer;

import org.jspecify.annotations.NullMarked;
