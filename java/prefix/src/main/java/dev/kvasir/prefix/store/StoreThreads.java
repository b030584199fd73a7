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
    if (count < 1) {
      throw new IllegalArgumentException(count + " threads");
    }
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
    Work<T> work = new Work<>(task, new CompletableFuture<>());
    executor.execute(work);
    return work.result;
  }

  private record Work<T>(Callable<T> task, CompletableFuture<T> result) implements Runnable {
    @Override
    public void run() {
      if (result.isDone()) {
        return; // cancelled
      }
      try {
        result.complete(task.call());
      } catch (IOException e) {
        result.completeExceptionally(new CompletionException(new UncheckedIOException(e)));
      } catch (Throwable e) {
        result.completeExceptionally(e instanceof CompletionException ? e : new CompletionException(e));
      }
    }
  }

  /**
   * Lets what is under way finish, for some seconds. What has not begun by then is cancelled.
   *
   * @param executor to end
   */
  public static void end(ExecutorService executor) {
    executor.shutdown();
    try {
      if (!executor.awaitTermination(5, TimeUnit.SECONDS)) {
        drop(executor);
      }
    } catch (InterruptedException e) {
      drop(executor);
      Thread.currentThread().interrupt();
    }
  }

  private static void drop(ExecutorService executor) {
    for (Runnable left : executor.shutdownNow()) {
      if (left instanceof Work<?> work) {
        work.result.cancel(false); // or who waits for it would for ever
      }
    }
  }
}
