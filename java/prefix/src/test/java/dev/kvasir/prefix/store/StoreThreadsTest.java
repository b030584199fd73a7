package dev.kvasir.prefix.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class StoreThreadsTest {

  @Test
  void whatHasNotBegunAtTheEndIsCancelled() throws Exception {
    ExecutorService threads = StoreThreads.create("test", 1);
    CountDownLatch begun = new CountDownLatch(1);
    CountDownLatch answer = new CountDownLatch(1);
    CompletableFuture<String> slow =
        StoreThreads.call(
            threads,
            () -> {
              begun.countDown();
              boolean answered = false;
              while (!answered) {
                try {
                  answered = answer.await(1, TimeUnit.MINUTES);
                } catch (InterruptedException e) {
                  // a disk does not hear of it either
                }
              }
              return "slow";
            });
    begun.await();
    CompletableFuture<String> behind = StoreThreads.call(threads, () -> "behind");
    Thread.currentThread().interrupt(); // who ends them does not wait
    StoreThreads.end(threads);
    assertTrue(Thread.interrupted());
    assertThrows(CancellationException.class, () -> behind.get(1, TimeUnit.SECONDS));
    answer.countDown();
    assertEquals("slow", slow.get(1, TimeUnit.MINUTES));
  }

  @Test
  void failuresAreTold() {
    ExecutorService threads = StoreThreads.create("test", 1);
    CompletableFuture<String> failed =
        StoreThreads.call(
            threads,
            () -> {
              throw new IOException("no disk");
            });
    CompletionException failure = assertThrows(CompletionException.class, failed::join);
    assertInstanceOf(UncheckedIOException.class, failure.getCause());
    StoreThreads.end(threads);
  }
}
