package dev.kvasir.micrometer;

import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.function.ToDoubleFunction;
import org.jspecify.annotations.Nullable;

/** Statistics that many gauges read: asked for once, and again when they are a second old. */
final class Snapshot<T> {

  private static final long FRESH = TimeUnit.SECONDS.toNanos(1);

  private final Supplier<T> source;
  private @Nullable T last;
  private long taken;

  Snapshot(Supplier<T> source) {
    this.source = source;
  }

  /** NaN where the source is closed. */
  synchronized double value(ToDoubleFunction<T> reader) {
    try {
      if (last == null || System.nanoTime() - taken > FRESH) {
        last = source.get();
        taken = System.nanoTime();
      }
      return reader.applyAsDouble(last);
    } catch (IllegalStateException e) {
      last = null;
      return Double.NaN;
    }
  }
}
