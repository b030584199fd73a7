package dev.kvasir.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.AttendBatch;
import dev.kvasir.KvCache;
import dev.kvasir.KvListener;
import dev.kvasir.KvSequence;
import dev.kvasir.Rows;
import dev.kvasir.Testing;
import dev.kvasir.error.BudgetExceededException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

/** What engines are told of their calls. */
class KvListenerTest {

  private static final class Notes implements KvListener {
    final List<String> calls = new ArrayList<>();
    final List<BudgetExceededException> refusals = new ArrayList<>();

    @Override
    public void appended(int layer, int tokens, long nanos) {
      assertTrue(nanos > 0);
      calls.add("append " + layer + " " + tokens);
    }

    @Override
    public void attended(int layer, int sequences, int tokens, long nanos) {
      assertTrue(nanos > 0);
      calls.add("attend " + layer + " " + sequences + " " + tokens);
    }

    @Override
    public void refused(BudgetExceededException refusal) {
      refusals.add(refusal);
    }
  }

  @Test
  void callsThatHappenedAreTold() {
    Notes notes = new Notes();
    float[] rows = new float[3 * 64];
    float[] queries = new float[4 * 128];
    try (KvCache cache = Testing.cache(Testing.small()).listener(notes).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(1, rows, rows, 3);
      cache.append(1, List.of(sequence), new int[] {2}, Rows.of(rows), Rows.of(rows));
      cache.attend(1, List.of(sequence, sequence), queries, new float[4 * 128], 2);
      cache.attend(
          new AttendBatch(List.of(sequence)).layer(1).tokens(3).queries(Rows.of(queries)).outputs(Rows.of(queries)));
      assertThrows(IllegalArgumentException.class, () -> sequence.append(2, rows, rows, 3));
      assertThrows(IllegalArgumentException.class, () -> sequence.attend(0, queries, queries));
    }
    assertEquals(List.of("append 1 3", "append 1 2", "attend 1 2 2", "attend 1 1 3"), notes.calls);
    assertEquals(List.of(), notes.refusals);
  }

  @Test
  void refusalsAreToldWithTheirNumbers() {
    Notes notes = new Notes();
    float[] rows = new float[500 * 64];
    try (KvCache cache = Testing.cache(Testing.small()).budgetBytes(20_000).listener(notes).build();
        KvSequence sequence = cache.newSequence()) {
      BudgetExceededException thrown =
          assertThrows(BudgetExceededException.class, () -> sequence.append(0, rows, rows, 500));
      assertThrows(BudgetExceededException.class, () -> sequence.reserve(500));
      assertEquals(2, notes.refusals.size());
      assertEquals(thrown, notes.refusals.get(0));
    }
    assertEquals(List.of(), notes.calls);
  }

  @Test
  void aListenerThatFailsChangesNothing() {
    for (Throwable failure : List.of(new IllegalStateException("broken"), new NoClassDefFoundError("none"))) {
      KvListener broken =
          new KvListener() {
            @Override
            public void appended(int layer, int tokens, long nanos) {
              KvListenerTest.<RuntimeException>raise(failure);
            }

            @Override
            public void attended(int layer, int sequences, int tokens, long nanos) {
              KvListenerTest.<RuntimeException>raise(failure);
            }

            @Override
            public void refused(BudgetExceededException refusal) {
              KvListenerTest.<RuntimeException>raise(failure);
            }
          };
      float[] ones = new float[128];
      Arrays.fill(ones, 1);
      float[] outputs = new float[128];
      try (KvCache cache = Testing.cache(Testing.small()).budgetBytes(50_000).listener(broken).build();
          KvSequence sequence = cache.newSequence()) {
        sequence.append(0, ones, ones, 1);
        assertEquals(1, sequence.length(0));
        cache.attend(new AttendBatch(List.of(sequence)).queries(Rows.of(ones)).outputs(Rows.of(outputs)));
        assertArrayEquals(ones, outputs, 1e-3f);
        float[] many = new float[2000 * 64];
        assertThrows(BudgetExceededException.class, () -> sequence.append(0, many, many, 2000));
      }
    }
  }

  @SuppressWarnings("unchecked") // as what knows no checked exceptions throws them
  private static <T extends Throwable> void raise(Throwable failure) throws T {
    throw (T) failure;
  }
}
