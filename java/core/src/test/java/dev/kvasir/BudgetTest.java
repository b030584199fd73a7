package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvException;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.Uniform;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A budget is hard, and a call that does not fit leaves no trace. */
class BudgetTest {

  private static final int ROW = 64;
  private static final int QUERY = 128;
  private static final List<KvMethod> METHODS = List.of(new HalfPrecision(), Uniform.bits(2).sinks(3).window(40));

  private final float[] rows = Testing.gaussian(new Random(3), 2000 * ROW);

  /** All that can be seen of a sequence. */
  private record View(KvStats stats, long length0, long length1, List<float[]> data) {

    static View of(KvCache cache, KvSequence sequence, float[] query) {
      List<float[]> data = new ArrayList<>();
      for (Side side : Side.values()) {
        data.add(sequence.read(0, side, 0, (int) sequence.length(0)));
      }
      KvStats stats = cache.stats(); // before attend, which counts tiles
      float[] output = new float[QUERY];
      sequence.attend(0, query, output);
      data.add(output);
      return new View(stats, sequence.length(0), sequence.length(1), data);
    }

    void assertSame(View other) {
      assertEquals(stats.bytes(), other.stats.bytes());
      assertEquals(stats.sequences(), other.stats.sequences());
      assertEquals(stats.total(), other.stats.total());
      assertEquals(stats.layers(), other.stats.layers());
      assertEquals(length0, other.length0);
      assertEquals(length1, other.length1);
      for (int i = 0; i < data.size(); i++) {
        assertArrayEquals(data.get(i), other.data.get(i));
      }
    }
  }

  /** The bytes of 600 tokens in one layer, and of some pages more. */
  private long budgetFor(KvMethod method, double morePages) {
    try (KvCache probe = Testing.cache(Testing.small()).method(method).build();
        KvSequence sequence = probe.newSequence()) {
      sequence.append(0, rows, rows, 600);
      KvStats.Layer held = probe.stats().total();
      return held.bytes() + (long) (morePages * held.pageBytes() / held.pages());
    }
  }

  @Test
  @Tag("jnicheck")
  void anAppendOfWhichAPartWouldFitChangesNothing() {
    for (KvMethod method : METHODS) {
      long budget = budgetFor(method, 1.5);
      try (KvCache cache = Testing.cache(Testing.small()).method(method).budgetBytes(budget).build();
          KvSequence sequence = cache.newSequence()) {
        assertEquals(budget, cache.stats().budgetBytes());
        sequence.append(0, rows, rows, 600);
        View before = View.of(cache, sequence, rows);
        assertThrows(BudgetExceededException.class, () -> sequence.append(0, rows, rows, 1400));
        assertThrows(BudgetExceededException.class, () -> sequence.append(0, rows, rows, 256));
        before.assertSame(View.of(cache, sequence, rows));
        sequence.append(0, rows, rows, 128);
        assertTrue(cache.stats().bytes() <= budget);
      }
    }
  }

  @Test
  void aFullCacheTakesForksButNothingThatTheyWrite() {
    for (KvMethod method : METHODS) {
      long budget = budgetFor(method, 0);
      try (KvCache cache = Testing.cache(Testing.small()).method(method).budgetBytes(budget).build();
          KvSequence sequence = cache.newSequence()) {
        sequence.append(0, rows, rows, 600);
        View before = View.of(cache, sequence, rows);
        assertThrows(BudgetExceededException.class, () -> sequence.append(1, rows, rows, 1));
        try (KvSequence fork = sequence.fork()) {
          assertEquals(budget, cache.stats().bytes());
          assertThrows(BudgetExceededException.class, () -> fork.append(0, rows, rows, 1));
          assertEquals(600, fork.length(0));
          assertArrayEquals(sequence.read(0, Side.KEYS, 0, 600), fork.read(0, Side.KEYS, 0, 600));
        }
        try (KvSequence other = cache.newSequence()) {
          assertThrows(BudgetExceededException.class, () -> other.append(0, rows, rows, 1));
          assertEquals(0, other.length());
        }
        before.assertSame(View.of(cache, sequence, rows));
        assertEquals(budget, cache.stats().bytes());
      }
    }
  }

  @Test
  void spaceThatIsGivenBackCanBeUsed() {
    KvMethod method = Uniform.bits(4).sinks(0);
    long held = budgetFor(method, 0); // 88 tokens of them in 16 bits, in 6 blocks of 16
    long budget = held + 16 * 2 * ROW * Short.BYTES; // 100 tokens take 7, until their page is sealed
    try (KvCache cache = Testing.cache(Testing.small()).method(method).budgetBytes(budget).build()) {
      for (int round = 0; round < 3; round++) {
        KvSequence sequence = cache.newSequence();
        sequence.append(0, rows, rows, 600);
        assertEquals(held, cache.stats().bytes());
        sequence.truncate(100);
        sequence.append(0, rows, rows, 500);
        assertThrows(BudgetExceededException.class, () -> sequence.append(0, rows, rows, 400));
        sequence.close();
        assertEquals(0, cache.stats().bytes());
      }
      assertEquals(budget, cache.stats().peakBytes());
    }
  }

  @Test
  void layersMayHaveBudgetsOfTheirOwn() {
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(8)).layerBudgetBytes(1, 100_000).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, 2000);
      sequence.append(1, rows, rows, 100);
      KvException e =
          assertThrows(BudgetExceededException.class, () -> sequence.append(1, rows, rows, 2000));
      Testing.assertNames(e, "layer 1", 100_000);
      assertEquals(KvException.Code.BUDGET_EXCEEDED, e.code());
      assertEquals(100, sequence.length());
      assertTrue(cache.stats().layers().get(1).bytes() <= 100_000);
      assertTrue(cache.stats().layers().get(0).bytes() > 100_000);
    }
  }
}
