package dev.kvasir.conformance;

import dev.kvasir.Side;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A codec as {@code docs/format.md} describes it, written from that text alone. A codec of the registry without one
 * fails the suite: write a class, and add a line to {@link ReferenceCodecs}.
 */
interface ReferenceCodec {

  /** Names of the codec's options: all that the registry lists, and no others. */
  Set<String> options();

  /** The option settings to test on a side at a head dim; together they vary every option. */
  List<Map<String, Double>> variants(Side side, int headDim);

  /** The option settings that golden files hold. */
  default List<Map<String, Double>> goldenVariants(Side side, int headDim, int bits) {
    return variants(side, headDim);
  }

  /** Token rows [128][headDim] of a page, to the last bit of float32. */
  float[] decode(PageShape shape, byte[] page, SideTable.View table);

  /**
   * Asserts all that the format promises of the page of these rows, [128][headDim] of float16 values: its length, its
   * parameters, the distance of every decoded element.
   */
  void check(PageShape shape, float[] rows, byte[] page, SideTable.View table);

  /**
   * Whether pages depend on how a stream is cut into appends, because the codec learns from the tokens that are there
   * when the first page is sealed. Sequences that were cut alike must still be alike.
   */
  default boolean dependsOnCuts() {
    return false;
  }

  /** Whether pages depend on the queries that attention saw before they were sealed. */
  default boolean dependsOnQueries() {
    return false;
  }

  /** Whether attention on this codec has kernels of its own on a backend, so that none of a lower one may run. */
  default boolean hasKernels(String backend) {
    return true;
  }
}
