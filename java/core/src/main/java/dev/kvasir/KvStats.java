package dev.kvasir;

import java.time.Duration;
import java.util.List;
import java.util.Map;

/**
 * A cache at one moment, over all its sequences. What forks share counts once.
 *
 * @param sequences open sequences
 * @param budgetBytes the cache's byte budget; 0 for none
 * @param bytes held now, windows included
 * @param peakBytes the most that was ever held
 * @param backend the kernels that the cache runs on
 * @param tiles pieces of attention computed on that backend so far
 * @param fallbackTiles pieces computed on a lower backend, because a codec has no kernels for the chosen one
 * @param total all layers together
 * @param layers each layer
 */
public record KvStats(
    long sequences,
    long budgetBytes,
    long bytes,
    long peakBytes,
    String backend,
    long tiles,
    long fallbackTiles,
    Layer total,
    List<Layer> layers) {

  /**
   * What one layer, or all of them, hold.
   *
   * @param bytes held now
   * @param pages sealed pages
   * @param pageBytes bytes of the sealed pages: codes and parameters
   * @param windowBytes bytes of the 16-bit windows and sinks, in blocks of 16 tokens, and of the queries that MixKVQ sums up
   * @param tableBytes bytes of what methods keep beside the pages, such as the patterns of {@code PatternKv}; what
   *     forks share counts once
   * @param pageBitsPerElement bits per element of the sealed pages, parameters included; 0 where there are none
   * @param bitsPerElement bits per element over everything held, elements counted once per sequence that sees them; 0
   *     where there are none
   * @param keyTableUse share of the keys in sealed pages, over all kv heads, that use a vector of their table; 0 for
   *     codecs without one
   * @param valueTableUse the same for values
   * @param keyPagesWithoutTable share of the sealed pages, each kv head for itself, in which no key uses the table; 0
   *     for codecs without one
   * @param valuePagesWithoutTable the same for values
   * @param keyBits mean width of the key codes in sealed pages; 0 where there are none
   * @param valueBits the same for values
   * @param shrinks what became of pages that gave up bits
   * @param keyBitsPerElement bits per key element of the sealed pages, with all that is stored beside codes:
   *     parameters, padding, permutations; 0 where there are none
   * @param valueBitsPerElement the same for values
   * @param keyChannels how many channels have key codes of which width, over all sealed pages and kv heads; widths
   *     that none has are left out
   * @param valueChannels the same for values
   * @param codebookBytes bytes of the codebooks of trained methods, in float16, each once however many layers and
   *     sequences use it; they belong to the model like its weights, so that no budget and no other figure counts them
   * @param bitsPerElementWithCodebooks {@code bitsPerElement} with them
   */
  public record Layer(
      long bytes,
      long pages,
      long pageBytes,
      long windowBytes,
      long tableBytes,
      double pageBitsPerElement,
      double bitsPerElement,
      double keyTableUse,
      double valueTableUse,
      double keyPagesWithoutTable,
      double valuePagesWithoutTable,
      double keyBits,
      double valueBits,
      Shrinks shrinks,
      double keyBitsPerElement,
      double valueBitsPerElement,
      Map<Integer, Long> keyChannels,
      Map<Integer, Long> valueChannels,
      long codebookBytes,
      double bitsPerElementWithCodebooks) {}

  /**
   * How pages gave up bits since the cache was built, for methods that let them.
   *
   * @param count how often a page gave up bits: half of them, or an eighth of a bit an element with {@code Spectral}
   * @param freedBytes the bytes that this freed
   * @param time the time that it took, waiting for attention under way included
   * @param steps the widths of the layer over time; empty for all layers together
   */
  public record Shrinks(long count, long freedBytes, Duration time, List<Step> steps) {

    /**
     * Copies the steps.
     *
     * @param count how often a page gave up bits
     * @param freedBytes the bytes that this freed
     * @param time the time that it took
     * @param steps the widths of the layer over time
     */
    public Shrinks {
      steps = List.copyOf(steps);
    }
  }

  /**
   * From some point on, new pages of a layer had room for fewer bits.
   *
   * @param bits the most bits of a side
   * @param sealedPages pages that the layer had sealed by then, over all sequences
   */
  public record Step(int bits, long sealedPages) {}
}
