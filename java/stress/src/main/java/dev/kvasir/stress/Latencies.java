package dev.kvasir.stress;

import java.util.concurrent.atomic.AtomicLongArray;

/** How long calls took, by eighths of octaves from 1 µs on: percentiles within 9 %. For any number of threads. */
final class Latencies {

  private static final int BUCKETS = 8 * 30;

  private final AtomicLongArray counts = new AtomicLongArray(BUCKETS);

  void add(long nanos) {
    double octaves = Math.log(Math.max(1, nanos / 1000.0)) / Math.log(2);
    counts.incrementAndGet(Math.min(BUCKETS - 1, (int) (8 * octaves)));
  }

  long count() {
    long sum = 0;
    for (int i = 0; i < BUCKETS; i++) {
      sum += counts.get(i);
    }
    return sum;
  }

  /** The time that a share of the calls did not exceed, in microseconds. */
  double micros(double share) {
    double wanted = share * count();
    long sum = 0;
    for (int i = 0; i < BUCKETS; i++) {
      sum += counts.get(i);
      if (sum >= wanted) {
        return Math.pow(2, (i + 1) / 8.0);
      }
    }
    return 0;
  }
}
