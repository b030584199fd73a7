package dev.kvasir.lab.cli;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.jspecify.annotations.Nullable;

/** Ctrl-C, between the command under way and the end of the program. */
final class Stop {

  private final AtomicBoolean asked;
  private final CountDownLatch ended = new CountDownLatch(1);
  private volatile @Nullable Runnable rest;

  Stop(AtomicBoolean asked) {
    this.asked = asked;
  }

  boolean asked() {
    return asked.get();
  }

  /** The command looks at {@link #asked} and ends soon; {@code rest} saves what it has in case that takes too long. */
  void endsWhenAsked(Runnable rest) {
    this.rest = rest;
  }

  /** The command has ended. */
  void ended() {
    ended.countDown();
  }

  /** Asks the command to end, and waits for so long if it is one that does. */
  void ask(long seconds) {
    asked.set(true);
    Runnable left = rest;
    if (left == null) {
      return;
    }
    try {
      if (!ended.await(seconds, TimeUnit.SECONDS)) {
        left.run();
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }
}
