package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.kvasir.method.Uniform;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Threads use a cache with all their might while another closes it: they see IllegalStateException and no more. */
@Timeout(120)
class CloseDuringUseTest {

  private static final int THREADS = 6;
  private static final int QUERY = 128;

  private final float[] rows = Testing.gaussian(new Random(5), 300 * 64);
  private final float[] queries = Testing.gaussian(new Random(6), 2 * QUERY);
  private final Queue<Throwable> failures = new ConcurrentLinkedQueue<>();

  private interface Use {
    void of(KvCache cache, KvSequence sequence);
  }

  private final List<Use> uses =
      List.of(
          (cache, sequence) -> sequence.attend(0, queries, new float[QUERY]),
          (cache, sequence) -> sequence.attend(0, Testing.direct(queries), Testing.direct(QUERY)),
          (cache, sequence) ->
              cache.attend(0, List.of(sequence, sequence), queries, new float[2 * QUERY]),
          (cache, sequence) -> {
            sequence.append(0, rows, rows, 150);
            if (sequence.length(0) > 3000) {
              sequence.truncate(300);
            }
          },
          (cache, sequence) -> {
            try (KvSequence fork = sequence.fork()) {
              fork.append(0, rows, rows, 130);
              fork.attend(0, queries, new float[QUERY]);
            }
          },
          (cache, sequence) -> {
            sequence.read(0, Side.VALUES, 0, 200);
            sequence.readPage(0, 0, Side.KEYS, 1);
            cache.stats();
            cache.newSequence().close();
          });

  private void hammer(KvCache cache, KvSequence sequence, AutoCloseable closed) throws Exception {
    CountDownLatch running = new CountDownLatch(THREADS);
    List<Thread> threads = new ArrayList<>();
    for (int i = 0; i < THREADS; i++) {
      Use use = uses.get(i % uses.size());
      Thread thread =
          new Thread(
              () -> {
                running.countDown();
                try {
                  while (true) {
                    use.of(cache, sequence);
                  }
                } catch (IllegalStateException expected) {
                  // the end that all of them should come to
                } catch (Throwable other) {
                  failures.add(other);
                }
              });
      threads.add(thread);
      thread.start();
    }
    running.await();
    Thread.sleep(20);
    closed.close();
    for (Thread thread : threads) {
      thread.join();
    }
    for (Throwable failure : failures) {
      throw new AssertionError("a thread saw more than IllegalStateException", failure);
    }
  }

  private KvSequence filled(KvCache cache) {
    KvSequence sequence = cache.newSequence();
    sequence.append(0, rows, rows, 300);
    return sequence;
  }

  @Test
  @Tag("jnicheck")
  void closingTheCache() throws Exception {
    for (int round = 0; round < 15; round++) {
      KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
      hammer(cache, filled(cache), cache);
    }
  }

  @Test
  void closingTheSequence() throws Exception {
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build()) {
      for (int round = 0; round < 15; round++) {
        KvSequence sequence = filled(cache);
        hammer(cache, sequence, sequence);
        assertEquals(0, cache.stats().sequences());
        assertEquals(0, cache.stats().bytes());
      }
    }
  }

  @Test
  void closingFromManyThreadsAtOnce() throws Exception {
    for (int round = 0; round < 50; round++) {
      KvCache cache = Testing.cache(Testing.small()).build();
      KvSequence sequence = filled(cache);
      List<Thread> closers = new ArrayList<>();
      for (int i = 0; i < THREADS; i++) {
        closers.add(new Thread(i % 2 == 0 ? cache::close : sequence::close));
      }
      closers.forEach(Thread::start);
      for (Thread closer : closers) {
        closer.join();
      }
    }
  }
}
