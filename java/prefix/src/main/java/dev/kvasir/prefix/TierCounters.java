package dev.kvasir.prefix;

import dev.kvasir.prefix.store.Holdings;
import java.time.Duration;
import java.util.concurrent.atomic.LongAccumulator;
import java.util.concurrent.atomic.LongAdder;

/** What becomes a tier's statistics. */
final class TierCounters {

  final LongAdder asked = new LongAdder();
  final LongAdder hits = new LongAdder();
  final LongAdder misses = new LongAdder();
  final LongAdder bytesRead = new LongAdder();
  final LongAdder bytesWritten = new LongAdder();
  final LongAdder failures = new LongAdder();
  final LongAdder skipped = new LongAdder();
  final LongAdder rejected = new LongAdder();
  private final LongAdder nanos = new LongAdder();
  private final LongAccumulator worst = new LongAccumulator(Math::max, 0);

  /** A call for blocks is over. */
  void answered(long begun, int wanted, int given, long bytes) {
    long took = System.nanoTime() - begun;
    asked.increment();
    nanos.add(took);
    worst.accumulate(took);
    hits.add(given);
    bytesRead.add(bytes);
    if (given < wanted) {
      misses.increment();
    }
  }

  TierStats stats(Holdings holdings) {
    long calls = asked.sum();
    return new TierStats(
        calls,
        hits.sum(),
        misses.sum(),
        bytesRead.sum(),
        bytesWritten.sum(),
        failures.sum(),
        skipped.sum(),
        rejected.sum(),
        Duration.ofNanos(calls == 0 ? 0 : nanos.sum() / calls),
        Duration.ofNanos(worst.get()),
        holdings);
  }
}
