package dev.kvasir;

import dev.kvasir.internal.Checks;
import java.util.List;
import java.util.Map;

/**
 * What sequences would take of a cache, before there is one.
 *
 * <pre>{@code
 * KvEstimate estimate = KvEstimate.of(geometry, Uniform.bits(2), 32768, 64);   // 64 sequences of 32768 tokens
 * long bytes = estimate.total().bytes();
 * }</pre>
 *
 * <p>The code that takes memory works it out, without taking any: figures are those of {@link KvCache#stats}, to the
 * byte, for sequences that share nothing. Three things they cannot know. Methods whose pages go by what is in them
 * ({@code MixKvq}) are counted at their largest. Methods that give up precision under a budget ({@code PmKvq}, {@code
 * Spectral} with a floor) are counted as without one. {@link Layer#leastBytes} is the other end of both. And on a GPU
 * pages of {@code MixKvq} have another layout, a little larger.
 *
 * @param sequences how many
 * @param tokens of each
 * @param total all layers together
 * @param layers each layer
 */
public record KvEstimate(long sequences, long tokens, Layer total, List<Layer> layers) {

  /**
   * What one layer, or all of them, take.
   *
   * @param bytes all of it: pages, windows and tables
   * @param leastBytes what remains of it where pages have given up all the precision that they can, or are at their
   *     smallest
   * @param pages sealed pages
   * @param pageBytes bytes of the sealed pages: codes and parameters
   * @param windowBytes bytes of the 16-bit windows and sinks, and of the queries that MixKVQ sums up
   * @param tableBytes bytes of what methods keep beside the pages, such as the patterns of {@code PatternKv}
   * @param codebookBytes bytes of the codebooks of trained methods, once for all sequences; {@code bytes} does not have
   *     them
   * @param bitsPerElement bits per element over everything held; 0 where there is nothing
   */
  public record Layer(
      long bytes,
      long leastBytes,
      long pages,
      long pageBytes,
      long windowBytes,
      long tableBytes,
      long codebookBytes,
      double bitsPerElement) {}

  /**
   * Makes lists immutable.
   *
   * @param sequences how many
   * @param tokens of each
   * @param total all layers together
   * @param layers each layer
   */
  public KvEstimate {
    layers = List.copyOf(layers);
  }

  /**
   * Sequences that have come to so many tokens: a prompt, and a token that was written after it.
   *
   * @param geometry the shape of the cache
   * @param method how it compresses
   * @param tokens of each sequence, 1 .. 2^28
   * @param sequences how many, 1 or more
   * @return what they take
   * @throws IllegalArgumentException as from {@link KvCache.Builder#build}, for numbers out of range, and for more bytes than a
   *     number holds
   */
  public static KvEstimate of(KvGeometry geometry, KvMethod method, long tokens, long sequences) {
    Checks.requirePositive("tokens", tokens);
    return of(geometry, method, tokens - 1, 1, sequences);
  }

  /**
   * The same where the two differ: patterns are added while tokens are written one by one, and layers that slide leave
   * pages behind with the append after those.
   *
   * @param geometry the shape of the cache
   * @param method how it compresses
   * @param prompt tokens that are appended in one call, 0 .. 2^28
   * @param decoded tokens that are appended one by one after that, 0 .. 2^22: they are gone through page by page
   * @param sequences how many, 1 or more
   * @return what they take
   * @throws IllegalArgumentException as from {@link KvCache.Builder#build}, for numbers out of range, and for more bytes than a
   *     number holds
   */
  public static KvEstimate of(KvGeometry geometry, KvMethod method, long prompt, long decoded, long sequences) {
    Checks.requirePositive("sequences", sequences);
    CacheSettings settings =
        new CacheSettings(geometry, method, 0, Map.of(), "auto", Precision.EXACT, 0, new byte[0]);
    return settings.estimate(prompt, decoded, sequences);
  }
}
