package dev.kvasir.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Testing;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.method.Uniform;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.Test;

class KvEngineAdapterTest {

  private static final int ROW = 64;
  private static final int QUERY = 128;
  private static final int TOKENS = 300;

  private final Random random = Testing.random("KvEngineAdapterTest");
  private final float[] keys = Testing.gaussian(random, 7 + TOKENS * ROW);
  private final float[] values = Testing.gaussian(random, 11 + TOKENS * ROW);
  private final float[] queries = Testing.gaussian(random, 13 + 2 * QUERY);

  @Test
  void partsOfArraysAreWhatSequencesGet() {
    try (KvEngineAdapter adapter = adapter(4);
        KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(4)).build();
        KvSequence expected = cache.newSequence()) {
      int lease = adapter.lease();
      for (int layer = 0; layer < 2; layer++) {
        adapter.append(lease, layer, keys, 7, values, 11, TOKENS);
        expected.append(layer, tail(keys, 7), tail(values, 11), TOKENS);
        float[] outputs = new float[5 + 2 * QUERY];
        float[] wanted = new float[2 * QUERY];
        adapter.attend(lease, layer, queries, 13, outputs, 5, 2);
        expected.attend(layer, tail(queries, 13), wanted, 2);
        assertArrayEquals(wanted, tail(outputs, 5));
        assertArrayEquals(new float[5], Arrays.copyOf(outputs, 5));
      }
      assertEquals(TOKENS, adapter.length(lease));
    }
  }

  @Test
  void forksAndCutsGoTheirOwnWays() {
    try (KvEngineAdapter adapter = adapter(8)) {
      int lease = adapter.lease();
      fill(adapter, lease, TOKENS);
      int branch = adapter.fork(lease);
      adapter.truncate(branch, 100);
      assertEquals(TOKENS, adapter.length(lease));
      assertEquals(100, adapter.length(branch));
      assertThrows(IllegalArgumentException.class, () -> adapter.truncate(branch, 101));
      assertThrows(IllegalArgumentException.class, () -> adapter.truncate(branch, -1));
      adapter.close(lease);
      adapter.close(lease);
      assertThrows(IllegalStateException.class, () -> adapter.length(lease));
      assertThrows(IllegalArgumentException.class, () -> adapter.length(2));
      assertThrows(IllegalArgumentException.class, () -> adapter.close(-1));
      assertEquals(100, adapter.length(branch));
      assertEquals(1, adapter.cache().stats().sequences());
    }
  }

  @Test
  void whatIsWrongIsNamedAndChangesNothing() {
    try (KvEngineAdapter adapter = adapter(8)) {
      int lease = adapter.lease();
      fill(adapter, lease, 10);
      IllegalArgumentException shortArray =
          assertThrows(
              IllegalArgumentException.class, () -> adapter.append(lease, 0, keys, 8, values, 0, TOKENS));
      assertTrue(shortArray.getMessage().contains("19200 numbers from 8 on, in an array of 19207"), shortArray.getMessage());
      assertThrows(IllegalArgumentException.class, () -> adapter.append(lease, 0, keys, -1, values, 0, 1));
      assertThrows(
          IllegalArgumentException.class, () -> adapter.append(lease, 0, keys, Integer.MAX_VALUE, values, 0, 1));
      assertThrows(IllegalArgumentException.class, () -> adapter.append(lease, 2, keys, 0, values, 0, 1));
      assertThrows(IllegalArgumentException.class, () -> adapter.append(lease, 0, keys, 0, values, 0, 0));
      assertThrows(
          IllegalArgumentException.class, () -> adapter.attend(lease, 0, queries, 0, new float[QUERY], 1, 1));
      float[] nan = new float[ROW];
      nan[3] = Float.NaN;
      assertThrows(NotFiniteException.class, () -> adapter.append(lease, 0, nan, 0, values, 0, 1));
      assertEquals(10, adapter.length(lease));
    }
    KvCache tight = Testing.cache(Testing.small()).budgetBytes(20_000).build();
    try (KvEngineAdapter adapter = KvEngineAdapter.of(tight)) {
      int lease = adapter.lease();
      assertThrows(BudgetExceededException.class, () -> adapter.append(lease, 0, keys, 0, values, 0, TOKENS));
      assertEquals(0, adapter.length(lease));
    }
    assertThrows(IllegalStateException.class, tight::stats);
  }

  private static KvEngineAdapter adapter(int bits) {
    return KvEngineAdapter.of(Testing.cache(Testing.small()).method(Uniform.bits(bits)).build());
  }

  private void fill(KvEngineAdapter adapter, int lease, int tokens) {
    for (int layer = 0; layer < 2; layer++) {
      adapter.append(lease, layer, keys, 0, values, 0, tokens);
    }
  }

  private static float[] tail(float[] array, int from) {
    return Arrays.copyOfRange(array, from, array.length);
  }
}
