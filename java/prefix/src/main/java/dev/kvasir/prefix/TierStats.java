package dev.kvasir.prefix;

import dev.kvasir.prefix.store.Holdings;
import java.time.Duration;

/**
 * What one tier has done.
 *
 * @param asked times that it was asked for blocks
 * @param hits blocks that it gave
 * @param misses times that it gave fewer than were wanted
 * @param bytesRead bytes of those blocks
 * @param bytesWritten bytes of blocks that it was given
 * @param failures calls that failed or came too late
 * @param skipped calls that were not made, since it had failed before
 * @param rejected blocks that were not what they should have been
 * @param meanLatency of calls for blocks
 * @param worstLatency of calls for blocks
 * @param holdings what it holds
 */
public record TierStats(
    long asked,
    long hits,
    long misses,
    long bytesRead,
    long bytesWritten,
    long failures,
    long skipped,
    long rejected,
    Duration meanLatency,
    Duration worstLatency,
    Holdings holdings) {}
