package dev.kvasir.prefix.store;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Threads for stores whose calls wait. What cannot be begun soon is refused: for who asks, that is a miss. */
public final class StoreThreads {

  private static final int MOST_WAITING = 1024;

  private StoreThreads() {}

  /**
   * Threads that do not keep a program from ending.
   *
   * @param name how they are called
   * @param count how many
   * @return an executor whose queue is bounded
   */
  public static ExecutorService create(String name, int count) {
    AtomicInteger number = new AtomicInteger();
    ThreadPoolExecutor threads =
        new ThreadPoolExecutor(
            count,
            count,
            10,
            TimeUnit.SECONDS,
            new ArrayBlockingQueue<>(MOST_WAITING),
            task -> {
              Thread thread = new Thread(task, name + "-" + number.incrementAndGet());
              thread.setDaemon(true);
              return thread;
            });
    threads.allowCoreThreadTimeOut(true);
    return threads;
  }

  /**
   * Does work elsewhere, of any exceptions.
   *
   * @param executor where
   * @param task the work
   * @return what comes of it, or how it failed
   */
  public static <T> CompletableFuture<T> call(Executor executor, Callable<T> task) {
    return CompletableFuture.supplyAsync(
        () -> {
          try {
            return task.call();
          } catch (IOException e) {
            throw new UncheckedIOException(e);
          } catch (RuntimeException e) {
            throw e;
          } catch (Exception e) {
            throw new CompletionException(e);
          }
        },
        executor);
  }

  /**
   * Lets what is under way finish, for some seconds.
   *
   * @param executor to end
   */
  public static void end(ExecutorService executor) {
    executor.shutdown();
    try {
      if (!executor.awaitTermination(5, TimeUnit.SECONDS)) {
        executor.shutdownNow();
      }
    } catch (InterruptedException e) {
      executor.shutdownNow();
      Thread.currentThread().interrupt();
    }
  }
}
