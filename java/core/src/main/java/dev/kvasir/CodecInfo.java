package dev.kvasir;

import java.util.List;
import java.util.Set;

/**
 * A way to store the keys or the values of a page. {@code docs/format.md} has the layouts.
 *
 * @param name what {@link CodecChoice#codec} takes, e.g. {@code "uniform"}
 * @param summary one sentence
 * @param sides what it stores: keys, values or both
 * @param bits the widths it stores elements at, in ascending order
 * @param options what {@link CodecChoice#options} may set
 * @param trained whether it needs codebooks, which {@code CommVq} brings; {@code spectral} can do without its bases
 */
public record CodecInfo(
    String name, String summary, Set<Side> sides, Set<Integer> bits, List<Option> options, boolean trained) {

  /**
   * An option of a codec.
   *
   * @param name its key in {@link CodecChoice#options}
   * @param summary what it does and which values it takes
   */
  public record Option(String name, String summary) {}
}
