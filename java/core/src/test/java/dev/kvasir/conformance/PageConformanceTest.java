package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import dev.kvasir.ElementType;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.conformance.Registry.Method;
import dev.kvasir.conformance.Registry.Width;
import java.nio.ShortBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Pages, for every codec and width of the registry.
 *
 * <p>{@link #bytesAreAsTheFormatSays}: the full product of option settings (axis and group), head dims, kinds of data
 * and backends that this machine can run. The pages of the first backend are all that the format promises ({@link
 * ReferenceCodec#check}), those of the others are identical, and the rows that each reads back are the reference
 * decoder's, without a tolerance.
 *
 * <p>{@link #cutsOfTheStreamDoNotMatter}: every option setting and backend at two head dims, with sinks and a window and
 * without. Where pages do depend on the cuts ({@link ReferenceCodec#dependsOnCuts}), those of equal cuts are compared,
 * and the rows that are in no page.
 *
 * <p>{@link #pagesOfAGrowingSequenceAreAsTheFormatSays}: the same data in the same pieces, each page against the rows
 * it was made of.
 */
class PageConformanceTest {

  private static final int KV_HEADS = 2;

  static List<Width> widths() {
    return Registry.widths();
  }

  @ParameterizedTest
  @MethodSource("widths")
  void bytesAreAsTheFormatSays(Width width) {
    for (int headDim : Registry.HEAD_DIMS) {
      for (Data data : Data.values()) {
        int row = KV_HEADS * headDim;
        float[] keys = data.rows(headDim, PageShape.TOKENS, row);
        float[] values = data.rows(headDim + 1, PageShape.TOKENS, row);
        for (Method method : width.methods(headDim)) {
          byte[][] first = null;
          float[][] decoded = null; // of keys and values, by the reference
          for (String backend : Registry.backends()) {
            String where = width + " on " + backend + ", data " + data;
            try (KvCache cache = cache(headDim, method, backend);
                KvSequence sequence = cache.newSequence()) {
              sequence.append(0, keys, values, PageShape.TOKENS);
              assertEquals(1, sequence.pageCount(0));
              byte[][] pages = pagesOf(sequence, 1);
              if (first == null) {
                first = pages;
                decoded = new float[][] {
                  check(sequence, PageShape.of(Side.KEYS, headDim, method.keys()), width, keys, where),
                  check(sequence, PageShape.of(Side.VALUES, headDim, method.values()), width, values, where)
                };
              }
              for (int i = 0; i < pages.length; i++) {
                assertArrayEquals(first[i], pages[i], () -> where + ": differs from the first backend");
              }
              for (Side side : Side.values()) {
                float[] read = sequence.read(0, side, 0, PageShape.TOKENS);
                checkDecoding(decoded[side.ordinal()], read, where + ", " + side);
              }
            }
          }
        }
      }
    }
  }

  /** Checks the page against the rows it was made of, and returns the rows that the reference decodes from it. */
  private static float[] check(KvSequence sequence, PageShape shape, Width width, float[] rows, String where) {
    float[] decoded = new float[rows.length];
    for (int head = 0; head < KV_HEADS; head++) {
      try {
        byte[] page = sequence.readPage(0, 0, shape.side(), head);
        SideTable.View table = SideTable.of(sequence, KV_HEADS, shape.headDim()).view(shape.side(), head, 0);
        width.reference(shape.side()).check(shape, ofHead(rows, head, shape.headDim()), page, table);
        float[] part = width.reference(shape.side()).decode(shape, page, table);
        for (int token = 0; token < PageShape.TOKENS; token++) {
          int to = (token * KV_HEADS + head) * shape.headDim();
          System.arraycopy(part, token * shape.headDim(), decoded, to, shape.headDim());
        }
      } catch (AssertionError error) {
        throw new AssertionError(where + ", head " + head + ", " + shape + ": " + error.getMessage(), error);
      }
    }
    return decoded;
  }

  /** Equal as numbers: a zero may have either sign. */
  private static void checkDecoding(float[] expected, float[] actual, String where) {
    assertEquals(expected.length, actual.length, where);
    for (int i = 0; i < expected.length; i++) {
      if (expected[i] != actual[i]) {
        fail(where + ": decoded element " + i + " is " + actual[i] + ", not " + expected[i]);
      }
    }
  }

  /** The parts of all pages: by page, head and side. */
  private static byte[][] pagesOf(KvSequence sequence, int pages) {
    byte[][] bytes = new byte[2 * KV_HEADS * pages][];
    for (int i = 0; i < bytes.length; i++) {
      Side side = i % 2 == 0 ? Side.KEYS : Side.VALUES;
      bytes[i] = sequence.readPage(0, i / (2 * KV_HEADS), side, i / 2 % KV_HEADS);
    }
    return bytes;
  }

  /** The rows [tokens][headDim] of one head out of [tokens][kvHeads][headDim]. */
  private static float[] ofHead(float[] rows, int head, int headDim) {
    float[] part = new float[rows.length / KV_HEADS];
    for (int token = 0; token < rows.length / (KV_HEADS * headDim); token++) {
      System.arraycopy(rows, (token * KV_HEADS + head) * headDim, part, token * headDim, headDim);
    }
    return part;
  }

  @ParameterizedTest
  @MethodSource("widths")
  void cutsOfTheStreamDoNotMatter(Width width) {
    int tokens = 300;
    for (int headDim : new int[] {48, 128}) {
      int row = KV_HEADS * headDim;
      float[] keys = Data.OUTLIERS.rows(5, tokens, row);
      float[] values = Data.NORMAL.rows(6, tokens, row);
      for (Method plain : width.methods(headDim)) {
        for (Method method : List.of(plain, new Method(plain.keys(), plain.values(), 30, 7))) {
          Map<Integer, Snapshot> expected = new HashMap<>();
          for (String backend : Registry.backends()) {
            try (KvCache cache = cache(headDim, method, backend)) {
              for (int cut : new int[] {tokens, 1, 100, 129}) {
                String where = width + " on " + backend + ", d=" + headDim + ", cut by " + cut;
                Snapshot snapshot = Snapshot.of(cache, keys, values, tokens, cut);
                Snapshot whole = expected.computeIfAbsent(tokens, any -> snapshot);
                if (width.reference().dependsOnCuts()) {
                  expected.computeIfAbsent(cut, any -> snapshot).assertSame(snapshot, where);
                  whole.assertSameWindow(snapshot, where);
                } else {
                  whole.assertSame(snapshot, where);
                }
              }
              Snapshot.ofHalves(cache, keys, values, tokens).assertSame(expected.get(tokens), width + ", from float16");
            }
          }
        }
      }
    }
  }

  @ParameterizedTest
  @MethodSource("widths")
  void pagesOfAGrowingSequenceAreAsTheFormatSays(Width width) {
    int tokens = 700;
    int headDim = 48;
    int row = KV_HEADS * headDim;
    float[][] rows = {Data.OUTLIERS.rows(5, tokens, row), Data.NORMAL.rows(6, tokens, row)};
    for (Method plain : width.methods(headDim)) {
      for (Method method : List.of(plain, new Method(plain.keys(), plain.values(), 30, 7))) {
        for (int cut : new int[] {tokens, 1, 100, 260}) {
          try (KvCache cache = cache(headDim, method, Registry.backends().get(0));
              KvSequence sequence = cache.newSequence()) {
            SideTable table = Snapshot.fill(sequence, rows[0], rows[1], tokens, cut);
            for (int i = 0; i < 2 * KV_HEADS * sequence.pageCount(0); i++) {
              Side side = Side.values()[i % 2];
              int head = i / 2 % KV_HEADS;
              long page = i / (2 * KV_HEADS);
              PageShape shape = PageShape.of(side, headDim, method.of(side));
              int first = (method.sinks() + (int) page * PageShape.TOKENS) * row;
              float[] part = ofHead(Snapshot.part(rows[side.ordinal()], first, PageShape.TOKENS * row), head, headDim);
              byte[] bytes = sequence.readPage(0, page, side, head);
              SideTable.View view = table.view(side, head, page);
              width.reference(shape.side()).check(shape, part, bytes, view);
              float[] read = sequence.read(0, side, method.sinks() + page * PageShape.TOKENS, PageShape.TOKENS);
              String where = width + ", cut by " + cut + ", page " + page + " head " + head + " " + shape;
              checkDecoding(width.reference(shape.side()).decode(shape, bytes, view), ofHead(read, head, headDim), where);
            }
          }
        }
      }
    }
  }

  private static KvCache cache(int headDim, Method method, String backend) {
    KvGeometry geometry =
        KvGeometry.builder().layers(1).queryHeads(KV_HEADS).kvHeads(KV_HEADS).headDim(headDim).build();
    return KvCache.builder(geometry).method(method).backend(backend).build();
  }

  /** All that can be seen of a sequence. */
  private record Snapshot(byte[][] pages, float[] keys, float[] values, SideTable table) {

    static Snapshot of(KvCache cache, float[] keys, float[] values, int tokens, int cut) {
      try (KvSequence sequence = cache.newSequence()) {
        return of(sequence, tokens, fill(sequence, keys, values, tokens, cut));
      }
    }

    /** Appends in pieces; returns the tables and how they grew. */
    static SideTable fill(KvSequence sequence, float[] keys, float[] values, int tokens, int cut) {
      int row = keys.length / tokens;
      int headDim = row / KV_HEADS;
      SideTable first = null; // when the first pages were there
      for (int done = 0; done < tokens; done += cut) {
        int count = Math.min(cut, tokens - done);
        sequence.append(0, part(keys, done * row, count * row), part(values, done * row, count * row), count);
        if (first == null && sequence.pageCount(0) > 0) {
          first = SideTable.of(sequence, KV_HEADS, headDim);
        }
      }
      return SideTable.of(sequence, KV_HEADS, headDim, first.fixed(), first.firstAddingPage());
    }

    /** The elements are float16 values, so their bits are the same stream. */
    static Snapshot ofHalves(KvCache cache, float[] keys, float[] values, int tokens) {
      try (KvSequence sequence = cache.newSequence()) {
        sequence.append(0, halves(keys), halves(values), tokens, ElementType.FLOAT16);
        return of(sequence, tokens, SideTable.of(sequence, KV_HEADS, keys.length / tokens / KV_HEADS));
      }
    }

    private static Snapshot of(KvSequence sequence, int tokens, SideTable table) {
      return new Snapshot(
          pagesOf(sequence, (int) sequence.pageCount(0)),
          sequence.read(0, Side.KEYS, 0, tokens),
          sequence.read(0, Side.VALUES, 0, tokens),
          table);
    }

    private static float[] part(float[] rows, int first, int count) {
      float[] part = new float[count];
      System.arraycopy(rows, first, part, 0, count);
      return part;
    }

    private static ShortBuffer halves(float[] rows) {
      short[] halves = new short[rows.length];
      for (int i = 0; i < rows.length; i++) {
        halves[i] = (short) Half.nearest(rows[i]);
      }
      return ShortBuffer.wrap(halves);
    }

    void assertSame(Snapshot other, String where) {
      assertEquals(pages.length, other.pages.length, where);
      for (int i = 0; i < pages.length; i++) {
        assertArrayEquals(pages[i], other.pages[i], where);
      }
      assertArrayEquals(keys, other.keys, where);
      assertArrayEquals(values, other.values, where);
      assertTrue(table.sameAs(other.table) || table.vectors()[0][0].length == 0, () -> where + ": side tables");
    }

    /** As many pages, and the newest tokens, which are in none of them, alike. */
    void assertSameWindow(Snapshot other, String where) {
      assertEquals(pages.length, other.pages.length, where);
      int newest = keys.length / 10; // 30 of 300 tokens; pages hold 256 of them at most
      int first = keys.length - newest;
      assertArrayEquals(part(keys, first, newest), part(other.keys, first, newest), where);
      assertArrayEquals(part(values, first, newest), part(other.values, first, newest), where);
    }
  }
}
