package dev.kvasir;

import dev.kvasir.file.FileOptions;
import dev.kvasir.internal.file.Transfer;
import java.io.IOException;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/** Reading and writing that somebody else waits for. */
final class FileWork {

  /** What is to be done, with options that know of the future. */
  interface Work<T> {
    T run(FileOptions options) throws IOException;
  }

  private FileWork() {}

  static Transfer transfer(FileOptions options) {
    return new Transfer(options.progress()::moved, options.cancelWhen());
  }

  /** A result that comes after the future was cancelled is disposed of. */
  static <T> CompletableFuture<T> run(FileOptions options, Consumer<T> dispose, Work<T> work) {
    CompletableFuture<T> future = new CompletableFuture<>();
    FileOptions now =
        options.cancelWhen(() -> future.isDone() || options.cancelWhen().getAsBoolean());
    Runnable task =
        () -> {
          try {
            T result = work.run(now);
            if (!future.complete(result) && result != null) {
              dispose.accept(result);
            }
          } catch (Throwable e) { // callbacks may throw anything
            future.completeExceptionally(e);
          }
        };
    try {
      options.executor().execute(task);
    } catch (Throwable e) { // an Error where there is no thread to be had
      future.completeExceptionally(e);
    }
    return future;
  }
}
