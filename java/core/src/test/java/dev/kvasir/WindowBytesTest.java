package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.Uniform;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Windows grow by blocks of 16 tokens, which forks share until one of them appends. */
class WindowBytesTest {

  private static final int LAYERS = 32;
  private static final int ROW = 8 * 128;

  private final float[] rows = Testing.gaussian(new Random(5), 32 * ROW);

  private static void append(KvSequence sequence, float[] rows, int tokens) {
    for (int layer = 0; layer < LAYERS; layer++) {
      sequence.append(layer, rows, rows, tokens);
    }
  }

  @Test
  void aTokenAndAForkTakeTwoMegabytesAtTheGeometryOfLlama8B() {
    KvGeometry geometry = KvGeometry.builder().layers(LAYERS).queryHeads(32).kvHeads(8).headDim(128).build();
    long block = 16L * 2 * ROW * Short.BYTES;
    try (KvCache cache = Testing.cache(geometry).method(Uniform.bits(2).window(128).sinks(4)).build();
        KvSequence sequence = cache.newSequence()) {
      append(sequence, rows, 1);
      assertEquals(LAYERS * block, cache.stats().bytes());
      assertTrue(cache.stats().bytes() <= 2_200_000);
      append(sequence, rows, 30);
      long longer = cache.stats().bytes();
      assertEquals(LAYERS * 3 * block, longer); // 4 sinks, 27 in the window
      try (KvSequence fork = sequence.fork()) {
        assertEquals(longer, cache.stats().bytes());
        float[] before = sequence.read(0, Side.KEYS, 0, 31);
        append(fork, rows, 1);
        assertEquals(longer + LAYERS * block, cache.stats().bytes());
        assertArrayEquals(before, sequence.read(0, Side.KEYS, 0, 31));
      }
      assertEquals(longer, cache.stats().bytes());
    }
  }

  @Test
  void manyShortSequencesFitWhereTheyShould() {
    long block = 16L * 2 * 64 * Short.BYTES;
    int count = 500;
    List<KvSequence> sequences = new ArrayList<>();
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2).sinks(0)).budgetBytes(2 * count * block).build()) {
      for (int i = 0; i < count; i++) {
        KvSequence sequence = cache.newSequence();
        sequence.append(0, rows, rows, 1 + i % 16);
        sequence.append(1, rows, rows, 1 + i % 16);
        sequences.add(sequence);
      }
      assertEquals(cache.stats().budgetBytes(), cache.stats().bytes());
      try (KvSequence late = cache.newSequence()) {
        assertThrows(BudgetExceededException.class, () -> late.append(0, rows, rows, 1));
        assertEquals(0, late.length());
        sequences.remove(0).close();
        late.append(0, rows, rows, 1);
      }
      sequences.forEach(KvSequence::close);
      assertEquals(0, cache.stats().bytes());
    }
  }

  @Test
  void queriesThatMixKvqSumsUpComeOnTop() {
    KvGeometry geometry = KvGeometry.builder().layers(LAYERS).queryHeads(32).kvHeads(8).headDim(128).build();
    long block = 16L * 2 * ROW * Short.BYTES;
    try (KvCache cache = Testing.cache(geometry).method(MixKvq.budget(2.7)).build();
        KvSequence sequence = cache.newSequence()) {
      append(sequence, rows, 1);
      assertEquals(LAYERS * block, cache.stats().bytes()); // nothing was seen yet
      float[] query = new float[geometry.querySize(0)];
      for (int layer = 0; layer < LAYERS; layer++) {
        sequence.attend(layer, query, new float[query.length]);
        sequence.attend(layer, query, new float[query.length]);
      }
      assertEquals(LAYERS * (block + 12L * ROW + 8), cache.stats().bytes());
      try (KvSequence fork = sequence.fork()) {
        assertEquals(LAYERS * (block + 2 * (12L * ROW + 8)), cache.stats().bytes());
      }
    }
  }

  @Test
  void aCutThroughAPageMayOverdrawTheBudget() {
    long block = 16L * 2 * 64 * Short.BYTES;
    KvMethod method = Uniform.bits(2).sinks(0);
    float[] many = Testing.gaussian(new Random(6), 256 * 64);
    long pages; // of which the second goes, and makes room
    try (KvCache probe = Testing.cache(Testing.small()).method(method).build();
        KvSequence sequence = probe.newSequence()) {
      sequence.append(0, many, many, 256);
      pages = probe.stats().bytes();
    }
    try (KvCache cache = Testing.cache(Testing.small()).method(method).budgetBytes(pages).build();
        KvSequence sequence = cache.newSequence();
        KvSequence other = cache.newSequence()) {
      sequence.append(0, many, many, 256);
      sequence.truncate(255);
      assertEquals(pages / 2 + 8 * block, cache.stats().bytes());
      assertTrue(cache.stats().bytes() > cache.stats().budgetBytes());
      BudgetExceededException refused =
          assertThrows(BudgetExceededException.class, () -> other.append(0, many, many, 1));
      assertEquals(0, refused.bytesLeft());
      sequence.append(0, many, many, 1); // seals the page: gives back more than it takes
      assertEquals(pages, cache.stats().bytes());
    }
  }
}
