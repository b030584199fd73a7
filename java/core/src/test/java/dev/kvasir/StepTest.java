package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.method.Uniform;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Steps over layers: all of a step or nothing of it. */
class StepTest {

  private static final int ROW = 64;

  private final float[] rows = Testing.gaussian(new Random(9), 400 * ROW);

  private KvCache cache(long budget) {
    return Testing.cache(Testing.small()).method(Uniform.bits(2).sinks(0)).budgetBytes(budget).build();
  }

  private void append(KvSequence sequence, int tokens) {
    sequence.append(0, rows, rows, tokens);
    sequence.append(1, rows, rows, tokens);
  }

  @Test
  void whatIsReservedIsThereWhateverOthersTake() {
    List<KvSequence> others = new ArrayList<>();
    try (KvCache cache = cache(200_000);
        KvSequence sequence = cache.newSequence()) {
      append(sequence, 120);
      sequence.reserve(40);
      BudgetExceededException full =
          assertThrows(
              BudgetExceededException.class,
              () -> {
                while (true) {
                  others.add(cache.newSequence());
                  append(others.get(others.size() - 1), 1);
                }
              });
      assertTrue(full.getMessage().contains("rollback()"));
      for (int i = 0; i < 40; i++) {
        append(sequence, 1);
      }
      assertEquals(160, sequence.length());
      assertThrows(BudgetExceededException.class, () -> sequence.reserve(400));
      assertEquals(160, sequence.length());
      others.forEach(KvSequence::close);
      long bytes = cache.stats().bytes();
      sequence.reserve(100);
      assertTrue(cache.stats().bytes() > bytes);
      sequence.reserve(0);
      assertEquals(bytes, cache.stats().bytes());
      assertThrows(IllegalArgumentException.class, () -> sequence.reserve(-1));
    }
  }

  @Test
  void aStepThatBrokeOffIsRolledBack() {
    try (KvCache cache = cache(1 << 20);
        KvSequence sequence = cache.newSequence()) {
      append(sequence, 50);
      float[] before = sequence.read(0, Side.KEYS, 0, 50);
      sequence.append(0, rows, rows, 3);
      float[] bad = new float[3 * ROW];
      bad[70] = Float.NaN;
      assertThrows(NotFiniteException.class, () -> sequence.append(1, bad, bad, 3));
      assertEquals(50, sequence.rollback());
      assertEquals(50, sequence.length(0));
      assertEquals(50, sequence.length(1));
      assertArrayEquals(before, sequence.read(0, Side.KEYS, 0, 50));
      assertEquals(50, sequence.rollback());
    }
  }
}
