package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import java.util.Arrays;
import java.util.List;

/**
 * True bits at lengths that take too long to run: windows and sinks in 16 bits weigh much in a short text and nothing in a
 * long one. A cache takes so much for its beginning and so much for every page, patterns that come with it included: both
 * are measured on the first pages of a text.
 */
public final class Lengths {

  /** The lengths, in tokens. */
  public static final List<Integer> TOKENS = List.of(4096, 32768, 131072);

  private static final int PAGE = KvCache.PAGE_TOKENS;
  private static final int BLOCK = 16;
  private static final int PAGES = 3;

  private Lengths() {}

  /**
   * Bits per element at {@link #TOKENS}; NaN where the text is too short to tell.
   *
   * @param text something to compress, in 16 bits
   * @param tokens how many of it there are
   */
  static double[] bits(MethodEntry method, Transfer text, int tokens, Calibrations calibrations) {
    KvGeometry geometry = text.model().geometry();
    if (method.factory() instanceof Budgets budget) {
      return TOKENS.stream().mapToDouble(length -> budget.bitsAt(length, geometry, calibrations)).toArray();
    }
    double[] none = new double[TOKENS.size()];
    Arrays.fill(none, Double.NaN);
    MethodEntry.Request request =
        new MethodEntry.Request(geometry, 1, 0, tokens, calibrations);
    try (KvCache cache = method.factory().create(request);
        KvSequence sequence = cache.newSequence()) {
      KvMethod used = cache.method();
      int kept = used.sinks() + used.window();
      if (tokens < kept + PAGES * PAGE) {
        return none;
      }
      text.to(sequence, kept + PAGE);
      double one = cache.stats().bytes();
      text.to(sequence, kept + PAGES * PAGE);
      double page = (cache.stats().bytes() - one) / (PAGES - 1);
      return TOKENS.stream().mapToDouble(length -> bits(geometry, length, kept, one - page, page)).toArray();
    }
  }

  private static double bits(KvGeometry geometry, int tokens, int kept, double beginning, double page) {
    int pages = (tokens - kept) / PAGE;
    int open = (tokens - kept - pages * PAGE + BLOCK - 1) / BLOCK * BLOCK;
    long row = 0;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      row += 2L * geometry.rowSize(layer);
    }
    return 8 * (beginning + pages * page + (double) open * row * Short.BYTES) / ((double) row * tokens);
  }
}
