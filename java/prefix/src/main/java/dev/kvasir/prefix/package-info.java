/**
 * Prefixes that many requests share: system prompts, documents, conversations that go on.
 *
 * <pre>{@code
 * PrefixCache prefixes = PrefixCache.builder(cache).hostBytes(8L << 30).folder(path, 100L << 30).build();
 * PrefixMatch match = prefixes.lookup(PrefixRequest.of(tokens));   // the longest prefix that is known, as a sequence
 * // run the model on tokens from match.reusedTokens() on, appending to match.sequence()
 * prefixes.publish(match.sequence(), PrefixRequest.of(tokens));    // what is new is known from now on
 * }</pre>
 *
 * <p>{@code docs/prefix.md} explains tiers, tenants, and what can be measured from outside.
 */
@NullMarked
package dev.kvasir.prefix;

import org.jspecify.annotations.NullMarked;
