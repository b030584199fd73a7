package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.kvasir.method.Uniform;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Many sequences in many threads give the bits that they give one after the other. */
@Timeout(120)
class ThreadsTest {

  private static final int THREADS = 8;
  private static final int SEQUENCES = 32;
  private static final int QUERY = 128;

  /** A life of a sequence, told by its seed; returns all outputs that it saw. */
  private static List<float[]> live(KvCache cache, long seed) {
    Random random = new Random(seed);
    List<float[]> outputs = new ArrayList<>();
    try (KvSequence sequence = cache.newSequence()) {
      for (int step = 0; step < 12; step++) {
        int tokens = 1 + random.nextInt(200);
        float[] keys = Testing.gaussian(random, tokens * 64);
        float[] values = Testing.gaussian(random, tokens * 64);
        float[] query = Testing.gaussian(random, QUERY);
        for (int layer = 0; layer < 2; layer++) {
          sequence.append(layer, keys, values, tokens);
        }
        for (int layer = 0; layer < 2; layer++) {
          float[] output = new float[QUERY];
          sequence.attend(layer, query, output);
          outputs.add(output);
        }
        if (step % 4 == 3) {
          try (KvSequence fork = sequence.fork()) {
            fork.append(0, keys, values, tokens);
            float[] output = new float[QUERY];
            fork.attend(0, query, output);
            outputs.add(output);
          }
          sequence.truncate(Math.max(0, sequence.length() - random.nextInt(100)));
        }
      }
    }
    return outputs;
  }

  @Test
  void sequencesDoNotDisturbEachOther() throws Exception {
    long base = Testing.random("ThreadsTest").nextLong();
    KvMethod method = Uniform.bits(3).sinks(5).window(30);
    List<List<float[]>> expected = new ArrayList<>();
    try (KvCache cache = Testing.cache(Testing.small()).method(method).build()) {
      for (int i = 0; i < SEQUENCES; i++) {
        expected.add(live(cache, base + i));
      }
    }
    ExecutorService pool = Executors.newFixedThreadPool(THREADS);
    try (KvCache cache = Testing.cache(Testing.small()).method(method).build()) {
      List<Future<List<float[]>>> lives = new ArrayList<>();
      for (int i = 0; i < SEQUENCES; i++) {
        long seed = base + i;
        lives.add(pool.submit(() -> live(cache, seed)));
      }
      for (int i = 0; i < SEQUENCES; i++) {
        assertAllEqual(expected.get(i), lives.get(i).get());
      }
      assertEquals(0, cache.stats().sequences());
      assertEquals(0, cache.stats().bytes());
    } finally {
      pool.shutdownNow();
    }
  }

  @Test
  void attendsOnOneSequenceOverlap() throws Exception {
    Random random = new Random(7);
    float[] rows = Testing.gaussian(random, 1000 * 64);
    float[] query = Testing.gaussian(random, QUERY);
    ExecutorService pool = Executors.newFixedThreadPool(THREADS);
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, 1000);
      float[] expected = new float[QUERY];
      sequence.attend(0, query, expected);
      float[] batchQueries = new float[3 * QUERY];
      for (int i = 0; i < 3; i++) {
        System.arraycopy(query, 0, batchQueries, i * QUERY, QUERY);
      }
      List<Future<?>> attends = new ArrayList<>();
      for (int i = 0; i < 200; i++) {
        boolean batched = i % 2 == 0;
        attends.add(
            pool.submit(
                () -> {
                  float[] output = new float[3 * QUERY];
                  if (batched) {
                    cache.attend(0, List.of(sequence, sequence, sequence), batchQueries, output);
                    assertArrayEquals(expected, Arrays.copyOfRange(output, 2 * QUERY, 3 * QUERY));
                  } else {
                    sequence.attend(0, query, output);
                  }
                  assertArrayEquals(expected, Arrays.copyOf(output, QUERY));
                }));
      }
      for (Future<?> attend : attends) {
        attend.get();
      }
    } finally {
      pool.shutdownNow();
    }
  }

  @Test
  void aCacheMayHaveThreadsOfItsOwn() throws Exception {
    long seed = 77;
    List<float[]> expected;
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build()) {
      expected = live(cache, seed);
    }
    for (int threads : new int[] {1, 3}) {
      ExecutorService callers = Executors.newFixedThreadPool(THREADS);
      try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).threads(threads).build()) {
        List<Future<List<float[]>>> lives = new ArrayList<>();
        for (int i = 0; i < THREADS; i++) {
          lives.add(callers.submit(() -> live(cache, seed)));
        }
        for (Future<List<float[]>> each : lives) {
          assertAllEqual(expected, each.get());
        }
      } finally {
        callers.shutdownNow();
      }
    }
    assertThrows(IllegalArgumentException.class, () -> Testing.cache(Testing.small()).threads(0));
    assertThrows(IllegalArgumentException.class, () -> Testing.cache(Testing.small()).threads(1025));
  }

  private static void assertAllEqual(List<float[]> expected, List<float[]> actual) {
    assertEquals(expected.size(), actual.size());
    for (int i = 0; i < expected.size(); i++) {
      assertArrayEquals(expected.get(i), actual.get(i));
    }
  }
}
