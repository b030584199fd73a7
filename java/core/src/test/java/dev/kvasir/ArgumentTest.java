package dev.kvasir;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.kvasir.error.NotFiniteException;
import dev.kvasir.training.ValueTrainer;
import dev.kvasir.method.Uniform;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Wrong numbers: an IllegalArgumentException each, and a sequence that is as it was. */
@Tag("jnicheck")
class ArgumentTest {

  private static final int TOKENS = 300;
  private static final int ROW = 64;
  private static final int QUERY = 128;
  private static final int[] NO_LAYERS = {-1, 2, 1000, Integer.MAX_VALUE, Integer.MIN_VALUE};

  private final float[] rows = Testing.gaussian(new Random(2), TOKENS * ROW);
  private final float[] query = Arrays.copyOf(rows, QUERY);
  private KvCache cache;
  private KvSequence sequence;
  private KvStats before;
  private float[] outputBefore;

  @BeforeEach
  void open() {
    cache = Testing.cache(Testing.small()).method(Uniform.bits(3)).build();
    sequence = cache.newSequence();
    sequence.append(0, rows, rows, TOKENS);
    sequence.append(1, rows, rows, 5);
    outputBefore = attend();
    before = cache.stats();
  }

  @AfterEach
  void nothingHasChanged() {
    assertEquals(before, cache.stats());
    assertEquals(TOKENS, sequence.length(0));
    assertEquals(5, sequence.length());
    assertArrayEquals(outputBefore, attend());
    cache.close();
  }

  private float[] attend() {
    float[] output = new float[QUERY];
    sequence.attend(0, query, output);
    return output;
  }

  private static void assertRefused(Executable call, Object... named) {
    assertNames(assertThrows(IllegalArgumentException.class, call), named);
  }

  @Test
  void layersThatDoNotExist() {
    float[] output = new float[QUERY];
    for (int layer : NO_LAYERS) {
      assertRefused(() -> sequence.append(layer, rows, rows, 1), layer);
      assertRefused(() -> sequence.append(layer, FloatBuffer.wrap(rows), FloatBuffer.wrap(rows), 1), layer);
      assertRefused(() -> sequence.attend(layer, query, output), layer);
      assertRefused(() -> cache.attend(layer, List.of(sequence), query, output), layer);
      assertRefused(() -> sequence.length(layer), layer);
      assertRefused(() -> sequence.read(layer, Side.KEYS, 0, 1), layer);
      assertRefused(() -> sequence.pageCount(layer), layer);
      assertRefused(() -> sequence.readPage(layer, 0, Side.KEYS, 0), layer);
    }
  }

  @Test
  void tokensThatAreNone() {
    float[] output = new float[QUERY];
    for (int tokens : new int[] {0, -1, Integer.MIN_VALUE}) {
      assertRefused(() -> sequence.append(0, rows, rows, tokens), "tokens", tokens);
      assertRefused(() -> sequence.append(0, FloatBuffer.wrap(rows), FloatBuffer.wrap(rows), tokens), tokens);
      assertRefused(() -> sequence.attend(0, query, output, tokens), "tokens", tokens);
      assertRefused(() -> sequence.read(0, Side.VALUES, 0, tokens), "tokens", tokens);
    }
  }

  @Test
  void hugeTokens() {
    float[] output = new float[QUERY];
    int huge = Integer.MAX_VALUE;
    assertRefused(() -> sequence.append(0, rows, rows, huge), "keys", rows.length, (long) huge * ROW);
    assertRefused(() -> sequence.attend(0, query, output, huge), "queries", (long) huge * QUERY);
    assertRefused(() -> sequence.read(0, Side.KEYS, 0, huge), (long) huge * ROW);
    assertRefused(() -> sequence.read(0, Side.KEYS, 0, huge / ROW), TOKENS);
  }

  @Test
  void moreQueriesThanTokens() {
    float[] queries = new float[6 * QUERY];
    assertRefused(() -> sequence.attend(1, queries, new float[6 * QUERY], 6), 6, 5);
  }

  @Test
  void anEmptyLayerHasNothingToAttendTo() {
    try (KvSequence empty = cache.newSequence()) {
      assertRefused(() -> empty.attend(0, query, new float[QUERY]));
      assertRefused(() -> cache.attend(0, List.of(sequence, empty), new float[2 * QUERY], new float[2 * QUERY]));
    }
  }

  @Test
  void positionsThatAreNotHeld() {
    assertRefused(() -> sequence.read(0, Side.KEYS, -1, 1), "first", -1);
    assertRefused(() -> sequence.read(0, Side.KEYS, TOKENS, 1), TOKENS);
    assertRefused(() -> sequence.read(0, Side.KEYS, TOKENS - 1, 2), TOKENS);
    assertRefused(() -> sequence.read(0, Side.KEYS, Long.MAX_VALUE, 1));
    assertRefused(() -> sequence.read(1, Side.KEYS, 0, 6), 5);
  }

  @Test
  void pagesAndHeadsThatDoNotExist() {
    assertEquals(2, sequence.pageCount(0));
    for (long page : new long[] {-1, 2, Long.MAX_VALUE, Long.MIN_VALUE}) {
      assertRefused(() -> sequence.readPage(0, page, Side.KEYS, 0), page);
    }
    for (int head : new int[] {-1, 2, Integer.MAX_VALUE}) {
      assertRefused(() -> sequence.readPage(0, 0, Side.KEYS, head), head);
    }
  }

  @Test
  void negativeLengths() {
    assertRefused(() -> sequence.truncate(-1), "length", -1);
    assertRefused(() -> sequence.truncate(Long.MIN_VALUE));
    sequence.truncate(Long.MAX_VALUE); // longer than the sequence: nothing to cut
  }

  @Test
  void batchesOfNothingOrOfStrangers() {
    float[] output = new float[2 * QUERY];
    assertRefused(() -> cache.attend(0, List.of(), query, output));
    try (KvCache other = Testing.cache(Testing.small()).build();
        KvSequence stranger = other.newSequence()) {
      stranger.append(0, rows, rows, 1);
      assertRefused(() -> cache.attend(0, List.of(sequence, stranger), output, output), "another cache");
    }
    assertThrows(NullPointerException.class, () -> cache.attend(0, Arrays.asList(sequence, null), output, output));
  }

  @Test
  void notFiniteElements() {
    float[] bad = {Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY, 32753f, -40000f, Float.MAX_VALUE};
    for (float element : bad) {
      for (int place : new int[] {0, ROW - 1, 150 * ROW + 17, TOKENS * ROW - 1}) {
        float[] spoilt = rows.clone();
        spoilt[place] = element;
        assertThrows(NotFiniteException.class, () -> sequence.append(0, spoilt, rows, TOKENS));
        assertThrows(NotFiniteException.class, () -> sequence.append(0, rows, spoilt, TOKENS));
        assertThrows(
            NotFiniteException.class,
            () -> sequence.append(0, Testing.direct(spoilt), Testing.direct(rows), TOKENS));
      }
    }
    short[] halves = new short[ROW];
    for (int bits : new int[] {0x7C00, 0xFC00, 0x7E00, 0x7BFF}) {
      halves[3] = (short) bits;
      assertThrows(
          NotFiniteException.class,
          () -> sequence.append(0, Testing.direct(halves), Testing.direct(new short[ROW]), 1, ElementType.FLOAT16));
    }
    for (int bits : new int[] {0x7F80, 0xFF80, 0x7FC0, 0x4780}) {
      halves[3] = (short) bits;
      assertThrows(
          NotFiniteException.class,
          () -> sequence.append(0, Testing.direct(halves), Testing.direct(new short[ROW]), 1, ElementType.BFLOAT16));
    }
  }

  @Test
  void theLargestMagnitudeIsWelcome() {
    float[] large = new float[ROW];
    Arrays.fill(large, 32752f);
    try (KvCache other = Testing.cache(Testing.small()).build();
        KvSequence fresh = other.newSequence()) {
      fresh.append(0, large, large, 1);
      assertArrayEquals(large, fresh.read(0, Side.KEYS, 0, 1));
    }
  }

  @Test
  void settingsThatNoCacheCanHave() {
    KvGeometry g = Testing.small();
    assertRefused(() -> KvCache.builder(g).budgetBytes(0), "budgetBytes", 0);
    assertRefused(() -> KvCache.builder(g).budgetBytes(Long.MIN_VALUE));
    assertRefused(() -> KvCache.builder(g).layerBudgetBytes(0, -5), -5);
    for (int layer : NO_LAYERS) {
      assertRefused(() -> KvCache.builder(g).layerBudgetBytes(layer, 100), layer);
    }
    assertRefused(() -> KvCache.builder(g).backend("abacus").build(), "abacus");
    assertRefused(() -> KvCache.builder(g).method(new AnyMethod(CodecChoice.of("zip", 2), 0, 0)).build(), "zip");
    assertRefused(() -> KvCache.builder(g).method(new AnyMethod(CodecChoice.of("uniform", 7), 0, 0)).build(), 7);
    assertRefused(() -> KvCache.builder(g).method(new AnyMethod(CodecChoice.of("f16", 8), 0, 0)).build(), 8);
    CodecChoice twoBits = CodecChoice.of("uniform", 2);
    assertRefused(() -> KvCache.builder(g).method(new AnyMethod(twoBits.with("colour", 1), 0, 0)).build(), "colour");
    assertRefused(() -> KvCache.builder(g).method(new AnyMethod(twoBits.with("group", 33), 0, 0)).build(), 33);
    assertRefused(() -> KvCache.builder(g).method(new AnyMethod(twoBits.with("axis", 2), 0, 0)).build(), 2);
    CodecChoice notANumber = new CodecChoice("uniform", 2, Map.of("group", Double.NaN));
    assertRefused(() -> KvCache.builder(g).method(new AnyMethod(notANumber, 0, 0)).build(), "group");
    for (int tokens : new int[] {-1, 65537, Integer.MAX_VALUE}) {
      assertRefused(() -> KvCache.builder(g).method(new AnyMethod(twoBits, tokens, 0)).build(), "window", tokens);
      assertRefused(() -> KvCache.builder(g).method(new AnyMethod(twoBits, 0, tokens)).build(), "sinks", tokens);
    }
  }

  @Test
  void aSideMustBeNamed() {
    try (KvCache own = Testing.cache(Testing.small()).build();
        KvSequence filled = own.newSequence()) {
      float[] row = new float[64];
      filled.append(0, row, row, 1);
      assertThrows(NullPointerException.class, () -> filled.read(0, null, 0, 1));
      assertThrows(NullPointerException.class, () -> filled.readPage(0, 0, null, 0));
      assertThrows(NullPointerException.class, () -> filled.readTable(0, null, 0));
    }
  }

  /** Refused by its size, before any of it is allocated. */
  @Test
  void networksThatNoMemoryHoldsAreRefused() {
    IllegalArgumentException e =
        assertThrows(
            IllegalArgumentException.class, () -> ValueTrainer.builder(16, 16384).hidden(65536).build());
    Testing.assertNames(e, 65536, 16384);
  }
}
