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
  private boolean open;

  Snapshot(Supplier<T> source) {
    this.source = source;
  }

  /** Of a gauge: NaN where the source is closed. */
  synchronized double value(ToDoubleFunction<T> reader) {
    return refresh() ? reader.applyAsDouble(last) : Double.NaN;
  }

  /** Of a counter, which never falls: where the source is closed, what it said last. */
  synchronized double count(ToDoubleFunction<T> reader) {
    refresh();
    return last == null ? 0 : reader.applyAsDouble(last);
  }

  private boolean refresh() {
    try {
      if (!open || last == null || System.nanoTime() - taken > FRESH) {
        last = source.get();
        taken = System.nanoTime();
        open = true;
      }
    } catch (IllegalStateException e) {
      open = false;
    }
    return open;
  }
}
