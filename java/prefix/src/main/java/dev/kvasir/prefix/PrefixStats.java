package dev.kvasir.prefix;

import java.util.Map;

/**
 * What a prefix cache has done.
 *
 * @param lookups requests
 * @param hits those of which something was known
 * @param tokensAsked tokens of all requests
 * @param tokensReused tokens that were known
 * @param published blocks that were made known
 * @param dropped publications and prefetches that found no thread in time
 * @param tiers each tier
 */
public record PrefixStats(
    long lookups,
    long hits,
    long tokensAsked,
    long tokensReused,
    long published,
    long dropped,
    Map<Tier, TierStats> tiers) {}
