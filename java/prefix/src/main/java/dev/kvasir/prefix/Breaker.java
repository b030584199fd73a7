package dev.kvasir.prefix;

import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;

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

  /** A call that may be made; null where none may. */
  synchronized @Nullable Call begin() {
    if (!open) {
      return new Call(false);
    }
    if (trying || clock.getAsLong() - until < 0) {
      return null;
    }
    trying = true;
    return new Call(true);
  }

  private synchronized void succeeded() {
    failures = 0;
    pause = 0;
    open = false;
    trying = false;
  }

  private synchronized void failed(boolean trial) {
    if (open ? !trial : ++failures < FAILURES) {
      return; // of many that were under way when it opened, each would make the pause longer
    }
    pause = Math.min(LONGEST, Math.max(SHORTEST, 2 * pause));
    until = clock.getAsLong() + pause;
    open = true;
    trying = false;
  }

  /** A call under way. One of its methods follows. */
  final class Call {
    private final boolean trial;

    private Call(boolean trial) {
      this.trial = trial;
    }

    void succeeded() {
      Breaker.this.succeeded();
    }

    void failed() {
      Breaker.this.failed(trial);
    }
  }
}
