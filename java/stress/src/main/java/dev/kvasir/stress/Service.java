package dev.kvasir.stress;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.error.BudgetExceededException;
import java.util.Random;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import org.jspecify.annotations.Nullable;

/**
 * A server of one method. Sessions share a system prompt; a turn reads a prompt, writes tokens, takes some back and sometimes
 * splits in two; then the session waits for its next turn, if there is room. Where the budget is full the session that has
 * waited longest is given up, and the turn is turned away, as servers do.
 */
final class Service implements AutoCloseable {

  private static final int SYSTEM_TOKENS = 500;
  private static final int MAX_TOKENS = 1500;
  private static final int MAX_WAITING = 12;
  private static final double SCALE = 1;

  private final KvGeometry geometry;
  private final KvCache cache;
  private final Mirror system;
  private final BlockingQueue<Mirror> waiting = new ArrayBlockingQueue<>(MAX_WAITING);
  final String name;
  final Latencies appends = new Latencies();
  final Latencies attends = new Latencies();
  final AtomicLong requests = new AtomicLong();
  final AtomicLong turnedAway = new AtomicLong();
  final AtomicLong checks = new AtomicLong();

  Service(KvGeometry geometry, KvMethod method, long budget, Random random) {
    this.geometry = geometry;
    this.name = method.name();
    this.cache =
        KvCache.builder(geometry)
            .method(method)
            .keysBeforeRope(method.keysBeforeRope())
            .budgetBytes(budget)
            .build();
    this.system = new Mirror(cache.newSequence(), SCALE);
    append(system, SYSTEM_TOKENS, random);
  }

  /** One turn of a session, an old or a new one. */
  void serve(Random random) {
    requests.incrementAndGet();
    Mirror session = random.nextInt(4) == 0 ? null : waiting.poll();
    try {
      if (session == null) {
        session = begin();
      }
      turn(session, random);
    } catch (BudgetExceededException e) {
      turnedAway.incrementAndGet();
      end(session);
      end(waiting.poll());
      return;
    }
    if (session.length(0) > MAX_TOKENS || !waiting.offer(session)) {
      end(session);
    }
  }

  private Mirror begin() {
    synchronized (system) {
      return system.forked(system.sequence.fork());
    }
  }

  private static void end(@Nullable Mirror session) {
    if (session != null) {
      session.sequence.close();
    }
  }

  private void turn(Mirror session, Random random) {
    // Most prompts are short, some are long.
    append(session, (int) Math.min(600, 20 * Math.exp(1.3 * Math.abs(random.nextGaussian()))), random);
    generate(session, 10 + random.nextInt(60), random);
    if (random.nextInt(4) == 0) {
      long length = session.sequence.length() - random.nextInt(20);
      session.sequence.truncate(length);
      session.truncated(length);
      generate(session, 10, random);
    }
    if (random.nextInt(4) == 0) {
      try (KvSequence branch = session.sequence.fork()) {
        generate(session.forked(branch), 20, random);
      }
    }
    if (random.nextInt(8) == 0) {
      session.check(random.nextInt(geometry.layers()), random);
      checks.incrementAndGet();
    }
  }

  long bytes() {
    return cache.stats().bytes();
  }

  /** Ends all sessions; nothing may remain but the system's prompt, and after it nothing at all. */
  @Override
  public void close() {
    waiting.forEach(Service::end);
    Violation.unless(cache.stats().sequences() == 1, name + ": sequences remain");
    system.sequence.close();
    Violation.unless(cache.stats().bytes() == 0, name + ": bytes remain");
    cache.close();
  }

  private void append(Mirror mirror, int tokens, Random random) {
    for (int layer = 0; layer < geometry.layers(); layer++) {
      float[] keys = Recipes.gaussian(random, tokens * geometry.rowSize(layer), SCALE);
      float[] values = Recipes.gaussian(random, tokens * geometry.rowSize(layer), SCALE);
      long start = System.nanoTime();
      mirror.sequence.append(layer, keys, values, tokens);
      if (tokens == 1) {
        appends.add(System.nanoTime() - start);
      }
      mirror.appended(layer, keys, values, tokens);
    }
  }

  private void generate(Mirror mirror, int tokens, Random random) {
    float[] output = new float[geometry.querySize(0)];
    for (int token = 0; token < tokens; token++) {
      append(mirror, 1, random);
      for (int layer = 0; layer < geometry.layers(); layer++) {
        float[] query = Recipes.gaussian(random, output.length, 1);
        long start = System.nanoTime();
        mirror.sequence.attend(layer, query, output);
        attends.add(System.nanoTime() - start);
      }
    }
  }
}
