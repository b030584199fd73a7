package dev.kvasir.stress;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Rounds of random calls on one cache by many threads. Each round has a geometry, a method and a budget of its own; each
 * thread has sequences of its own with a {@link Mirror} each, and the cache, its budget and the library's threads are what
 * they share. Some rounds end by closing the cache under the threads' hands.
 */
final class CallFuzzer {

  private static final int THREADS = 6;
  private static final int STEPS = 120;
  private static final int PAGE_TOKENS = 128;
  private static final int ROW_BLOCK_TOKENS = 16;
  /** Longer than any round takes on a slow machine: beyond it, something hangs. */
  private static final long ROUND_LIMIT_SECONDS = 300;

  private final long seed;
  private long calls;

  CallFuzzer(long seed) {
    this.seed = seed;
  }

  /** Calls made so far. */
  long calls() {
    return calls;
  }

  /** Runs one round, which is told by the seed and its number; returns what it was. */
  String round(long number, long deadline) {
    Random random = new Random(seed + 1_000_003 * number);
    KvGeometry geometry = geometry(random);
    KvMethod method = Recipes.any(geometry, random);
    KvCache.Builder builder =
        KvCache.builder(geometry).method(method).keysBeforeRope(method.keysBeforeRope());
    long budget = random.nextBoolean() ? 0 : (1 + random.nextInt(64)) * 262_144L;
    if (budget > 0) {
      builder.budgetBytes(budget);
    }
    boolean closedEarly = random.nextInt(4) == 0;
    String name = method.name() + " on " + geometry + (budget > 0 ? ", budget " + budget : "");
    ExecutorService pool = Executors.newFixedThreadPool(THREADS);
    try (KvCache cache = builder.build()) {
      List<Future<Long>> threads = new ArrayList<>();
      for (int thread = 0; thread < THREADS; thread++) {
        Caller caller = new Caller(cache, new Random(random.nextLong()));
        threads.add(pool.submit(() -> caller.live(STEPS, deadline)));
      }
      if (closedEarly) {
        TimeUnit.MILLISECONDS.sleep(random.nextInt(200));
        cache.close();
      }
      for (Future<Long> thread : threads) {
        calls += thread.get(ROUND_LIMIT_SECONDS, TimeUnit.SECONDS);
      }
      if (!closedEarly) {
        Violation.unless(cache.stats().sequences() == 0, "sequences remain");
        Violation.unless(cache.stats().bytes() == 0, cache.stats().bytes() + " bytes remain");
        Violation.unless(
            budget == 0 || cache.stats().peakBytes() <= budget + mostReopened(geometry), "the budget was exceeded");
      }
      return name;
    } catch (ExecutionException e) {
      throw new Violation("round " + number + ", " + name + ": " + e.getCause().getMessage(), e.getCause());
    } catch (TimeoutException e) {
      throw new Violation("round " + number + ", " + name + ": hangs", e);
    } catch (InterruptedException e) {
      throw new Violation("round " + number + " was interrupted", e);
    } finally {
      pool.shutdownNow();
    }
  }

  /**
   * What cuts may take beyond a budget: they need no room, and the 16-bit rows that a cut through a page brings back are at
   * most those of a window that is about to be sealed, in whole blocks, once in every sequence.
   */
  private static long mostReopened(KvGeometry geometry) {
    long rows = Recipes.MAX_WINDOW + PAGE_TOKENS + ROW_BLOCK_TOKENS;
    long bytes = 0;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      bytes += rows * 2 * geometry.rowSize(layer) * Short.BYTES;
    }
    return THREADS * Caller.MOST_SEQUENCES * bytes;
  }

  private static KvGeometry geometry(Random random) {
    int[] dims = {32, 48, 64, 80, 96, 128, 256};
    int kvHeads = 1 + random.nextInt(3);
    KvGeometry.Builder builder =
        KvGeometry.builder()
            .layers(1 + random.nextInt(3))
            .kvHeads(kvHeads)
            .queryHeads(kvHeads * (1 + random.nextInt(8)))
            .headDim(dims[random.nextInt(dims.length)]);
    if (random.nextInt(4) == 0) {
      builder.slidingWindow(0, 1 + random.nextInt(400));
    }
    return builder.build();
  }
}
