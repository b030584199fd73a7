package dev.kvasir.prefix.store;

import java.time.Duration;

/** How old what a store gave up had become. Guarded by the store. */
final class Ages {

  private long count;
  private double nanos;

  void evicted(long age) {
    count++;
    nanos += age;
  }

  Holdings holdings(long blocks, long bytes) {
    return new Holdings(blocks, bytes, count, Duration.ofNanos(count == 0 ? 0 : (long) (nanos / count)));
  }
}
