package dev.kvasir.prefix.store;

import java.time.Duration;

/**
 * What a tier holds and has given up.
 *
 * @param blocks blocks held, -1 where that is not known
 * @param bytes bytes held, -1 where that is not known
 * @param evicted blocks that had to go for others, or were too old
 * @param evictedAge how long those had been there, on average
 */
public record Holdings(long blocks, long bytes, long evicted, Duration evictedAge) {

  /** Of a store that keeps no books. */
  public static final Holdings UNKNOWN = new Holdings(-1, -1, 0, Duration.ZERO);
}
