package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Kvasir;
import dev.kvasir.Precision;
import dev.kvasir.Side;
import dev.kvasir.conformance.Registry.Method;
import dev.kvasir.conformance.Registry.Width;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * The other ways to attend, for every codec, width and backend, with default options at one awkward head dim (48):
 * several query tokens with a causal offset, batches of different lengths, sequences long enough to be split over
 * threads, sliding windows, sinks and longer 16-bit windows. Precision is exact; rows are read back from the cache,
 * whose decoding {@link PageConformanceTest} checks.
 */
class AttentionModesTest {

  private static final int HEAD_DIM = 48;
  private static final int KV_HEADS = 2;
  private static final int RATIO = 7;
  private static final int ROW = KV_HEADS * HEAD_DIM;
  private static final int QUERY = RATIO * ROW;
  private static final double LIMIT = Registry.nmse(Precision.EXACT);

  static List<Arguments> widthsAndBackends() {
    List<Arguments> all = new ArrayList<>();
    for (Width width : Registry.widths()) {
      for (String backend : Registry.backends()) {
        all.add(Arguments.of(width, backend));
      }
    }
    return all;
  }

  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("widthsAndBackends")
  void severalQueryTokensSeeWhatStandsBeforeThem(Width width, String backend) {
    try (KvCache cache = cache(width, backend, 0, 0, 0);
        KvSequence sequence = cache.newSequence()) {
      append(sequence, 1, 300);
      // 5 tokens of 7 query heads are more rows than a tile takes; 60 cross a page border.
      for (int tokens : new int[] {1, 2, 5, 60}) {
        float[] queries = Data.NORMAL.rows(tokens, tokens, QUERY);
        float[] outputs = new float[queries.length];
        sequence.attend(0, queries, outputs, tokens);
        check(sequence, 0, queries, outputs, 0, tokens, 0, width + " on " + backend + ", " + tokens + " tokens");
      }
    }
  }

  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("widthsAndBackends")
  void batchesOfDifferentLengths(Width width, String backend) {
    int[] lengths = {1, 127, 128, 129, 1000, 400, 400};
    try (KvCache cache = cache(width, backend, 0, 0, 0)) {
      List<KvSequence> sequences = new ArrayList<>();
      for (int length : lengths) {
        sequences.add(cache.newSequence());
        append(sequences.get(sequences.size() - 1), sequences.size(), length);
      }
      sequences.add(2, sequences.get(3)); // a sequence may be listed twice
      Collections.reverse(sequences);
      for (int tokens : new int[] {1, 3}) {
        List<KvSequence> batch = new ArrayList<>(sequences);
        batch.removeIf(sequence -> sequence.length(0) < tokens);
        float[] queries = Data.NORMAL.rows(9, batch.size() * tokens, QUERY);
        float[] outputs = new float[queries.length];
        cache.attend(0, batch, queries, outputs, tokens);
        for (int i = 0; i < batch.size(); i++) {
          String where = width + " on " + backend + ", batch of " + batch.size() + ", sequence " + i;
          check(batch.get(i), 0, queries, outputs, i * tokens * QUERY, tokens, 0, where);
        }
      }
    }
  }

  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("widthsAndBackends")
  void longSequencesAreSplitOverAnyNumberOfThreads(Width width, String backend) {
    int before = Kvasir.threads();
    try (KvCache cache = cache(width, backend, 0, 0, 0);
        KvSequence sequence = cache.newSequence()) {
      append(sequence, 3, 3500);
      float[] query = Data.NORMAL.rows(5, 1, QUERY);
      float[] keys = sequence.read(0, Side.KEYS, 0, 3500);
      float[] values = sequence.read(0, Side.VALUES, 0, 3500);
      double[] expected =
          new ReferenceAttention(RATIO * KV_HEADS, KV_HEADS, HEAD_DIM, 0).attend(keys, values, 0, 3500, query, 1);
      for (int threads : new int[] {1, 2, 7}) {
        Kvasir.setThreads(threads);
        float[] output = new float[QUERY];
        sequence.attend(0, query, output);
        double nmse = ReferenceAttention.nmse(expected, output, 0);
        assertTrue(nmse <= LIMIT, () -> width + " on " + backend + ", " + threads + " threads: NMSE " + nmse);
      }
    } finally {
      Kvasir.setThreads(before);
    }
  }

  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("widthsAndBackends")
  void slidingWindowsSeeTheNewestTokensOnly(Width width, String backend) {
    for (int window : new int[] {1, 100, 128, 200}) {
      try (KvCache cache = cache(width, backend, window, 0, 0);
          KvSequence sequence = cache.newSequence()) {
        float[] queries = Data.NORMAL.rows(4, 2, QUERY);
        float[] outputs = new float[queries.length];
        for (int step = 0; sequence.length(0) < 900; step++) {
          append(sequence, step, 60 + step % 7);
          sequence.attend(0, queries, outputs, 2);
          int oldest = (int) Math.max(0, sequence.length(0) - window - 1);
          String where = width + " on " + backend + ", window " + window + ", length " + sequence.length(0);
          check(sequence, oldest, queries, outputs, 0, 2, window, where);
        }
        // The window, a page to step back, the newest append, and a page cut at either end.
        assertTrue(sequence.pageCount(0) <= (window + 2 * 128 + 66) / 128 + 1, "pages held: " + sequence.pageCount(0));
      }
    }
  }

  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("widthsAndBackends")
  void sinksAndWindowsStayInSixteenBits(Width width, String backend) {
    for (int sinks : new int[] {1, 140}) {
      for (int window : new int[] {0, 200}) {
        try (KvCache cache = cache(width, backend, 0, sinks, window);
            KvSequence sequence = cache.newSequence()) {
          int length = 700;
          float[][] rows = append(sequence, 2, length);
          assertEquals((length - sinks - window) / 128, sequence.pageCount(0));
          int sealed = sinks + 128 * (int) sequence.pageCount(0);
          String where = width + " on " + backend + ", sinks " + sinks + ", window " + window;
          for (Side side : Side.values()) {
            float[] read = sequence.read(0, side, 0, length);
            for (int i = 0; i < read.length; i++) {
              if (i < sinks * ROW || i >= sealed * ROW) {
                assertEquals(rows[side.ordinal()][i], read[i], where);
              }
            }
          }
          float[] query = Data.NORMAL.rows(8, 1, QUERY);
          float[] output = new float[QUERY];
          sequence.attend(0, query, output);
          check(sequence, 0, query, output, 0, 1, 0, where);
        }
      }
    }
  }

  /** Appends normal rows and returns them. */
  private static float[][] append(KvSequence sequence, int seed, int tokens) {
    float[][] rows = {Data.NORMAL.rows(2 * seed, tokens, ROW), Data.NORMAL.rows(2 * seed + 1, tokens, ROW)};
    sequence.append(0, rows[0], rows[1], tokens);
    return rows;
  }

  /** Compares the outputs from `offset` on with attention over the rows from `oldest` on. */
  private static void check(
      KvSequence sequence,
      int oldest,
      float[] queries,
      float[] outputs,
      int offset,
      int tokens,
      int window,
      String where) {
    int length = (int) sequence.length(0);
    float[] mine = new float[tokens * QUERY];
    System.arraycopy(queries, offset, mine, 0, mine.length);
    double[] expected =
        new ReferenceAttention(RATIO * KV_HEADS, KV_HEADS, HEAD_DIM, window)
            .attend(
                sequence.read(0, Side.KEYS, oldest, length - oldest),
                sequence.read(0, Side.VALUES, oldest, length - oldest),
                oldest,
                length,
                mine,
                tokens);
    double nmse = ReferenceAttention.nmse(expected, outputs, offset);
    assertTrue(nmse <= LIMIT, () -> where + ": NMSE " + nmse);
  }

  private static KvCache cache(Width width, String backend, int slidingWindow, int sinks, int window) {
    KvGeometry geometry =
        KvGeometry.builder()
            .layers(1)
            .queryHeads(RATIO * KV_HEADS)
            .kvHeads(KV_HEADS)
            .headDim(HEAD_DIM)
            .slidingWindow(slidingWindow)
            .build();
    Method plain = width.methods(HEAD_DIM).get(0);
    return KvCache.builder(geometry)
        .method(new Method(plain.keys(), plain.values(), window, sinks))
        .backend(backend)
        .build();
  }
}
