package dev.kvasir.prefix;

import java.util.function.LongSupplier;

/**
 * Keeps requests away from what has failed several times in a row: for a while at first, twice as long each time after
 * that, with one request to try in between.
 */
final class Breaker {

  private static final int FAILURES = 3;
  private static final long SHORTEST = 250_000_000L;
  private static final long LONGEST = 30_000_000_000L;

  private final LongSupplier clock;
  private int failures;
  private long pause;
  private long until;
  private boolean open;
  private boolean trying;

  Breaker(LongSupplier clock) {
    this.clock = clock;
  }

  /** Whether a call may be made. If so, {@link #succeeded} or {@link #failed} follows. */
  synchronized boolean allows() {
    if (!open) {
      return true;
    }
    if (trying || clock.getAsLong() - until < 0) {
      return false;
    }
    trying = true;
    return true;
  }

  synchronized void succeeded() {
    failures = 0;
    pause = 0;
    open = false;
    trying = false;
  }

  synchronized void failed() {
    trying = false;
    failures++;
    if (failures >= FAILURES || open) {
      pause = Math.min(LONGEST, Math.max(SHORTEST, 2 * pause));
      until = clock.getAsLong() + pause;
      open = true;
    }
  }
}
