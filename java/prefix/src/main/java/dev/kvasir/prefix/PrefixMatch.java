package dev.kvasir.prefix;

import dev.kvasir.KvSequence;
import java.util.Map;

/**
 * What was known of a text.
 *
 * @param sequence holds the first tokens of the text, and goes on from there; to be closed by the caller
 * @param reusedTokens how many those are
 * @param tokensByTier where they came from; tiers that gave none are missing
 */
public record PrefixMatch(KvSequence sequence, int reusedTokens, Map<Tier, Integer> tokensByTier)
    implements AutoCloseable {

  /** Closes the sequence. */
  @Override
  public void close() {
    sequence.close();
  }
}
