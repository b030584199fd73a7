package dev.kvasir.file;

import java.util.Objects;
import java.util.concurrent.Executor;
import java.util.concurrent.ForkJoinPool;
import java.util.function.BooleanSupplier;

/** How a sequence is saved or restored. Immutable; each method gives options that differ in one thing. */
public final class FileOptions {

  /** Told of bytes as they are written or read, by the thread that does it. */
  @FunctionalInterface
  public interface Progress {
    /**
     * So far.
     *
     * @param bytes written or read
     * @param total of all, or -1 where nobody knows
     */
    void moved(long bytes, long total);
  }

  private static final FileOptions DEFAULTS =
      new FileOptions(new int[0], new byte[0], (bytes, total) -> {}, () -> false, ForkJoinPool.commonPool());

  private final int[] tokens;
  private final byte[] salt;
  private final Progress progress;
  private final BooleanSupplier cancelled;
  private final Executor executor;

  private FileOptions(int[] tokens, byte[] salt, Progress progress, BooleanSupplier cancelled, Executor executor) {
    this.tokens = tokens;
    this.salt = salt;
    this.progress = progress;
    this.cancelled = cancelled;
    this.executor = executor;
  }

  /**
   * No token ids, nobody is told, nothing is cancelled, and what is asynchronous runs on the common pool.
   *
   * @return the options
   */
  public static FileOptions defaults() {
    return DEFAULTS;
  }

  /**
   * Saves the ids of the sequence's tokens with it ({@link KvFile#tokens}), and names its blocks by them.
   *
   * @param ids from the first token on
   * @return options with these
   */
  public FileOptions tokens(int... ids) {
    return new FileOptions(ids.clone(), salt, progress, cancelled, executor);
  }

  /**
   * Whose blocks they are: part of their names.
   *
   * @param bytes any
   * @return options with these
   */
  public FileOptions salt(byte[] bytes) {
    return new FileOptions(tokens, bytes.clone(), progress, cancelled, executor);
  }

  /**
   * Who is told of bytes.
   *
   * @param listener called after every block; what it throws ends the work
   * @return options with it
   */
  public FileOptions progress(Progress listener) {
    return new FileOptions(tokens, salt, Objects.requireNonNull(listener, "listener"), cancelled, executor);
  }

  /**
   * When to stop: asked before every block. What was begun then ends with {@link
   * dev.kvasir.error.KvFileException.Reason#CANCELLED}, and leaves nothing behind.
   *
   * @param condition whether nobody wants it any more
   * @return options with it
   */
  public FileOptions cancelWhen(BooleanSupplier condition) {
    return new FileOptions(tokens, salt, progress, Objects.requireNonNull(condition, "condition"), executor);
  }

  /**
   * Where asynchronous work runs.
   *
   * @param where an executor
   * @return options with it
   */
  public FileOptions executor(Executor where) {
    return new FileOptions(tokens, salt, progress, cancelled, Objects.requireNonNull(where, "where"));
  }

  /**
   * The token ids.
   *
   * @return a copy; empty where there are none
   */
  public int[] tokens() {
    return tokens.clone();
  }

  /**
   * The salt.
   *
   * @return a copy
   */
  public byte[] salt() {
    return salt.clone();
  }

  /**
   * Who is told of bytes.
   *
   * @return the listener
   */
  public Progress progress() {
    return progress;
  }

  /**
   * When to stop.
   *
   * @return the condition
   */
  public BooleanSupplier cancelWhen() {
    return cancelled;
  }

  /**
   * Where asynchronous work runs.
   *
   * @return the executor
   */
  public Executor executor() {
    return executor;
  }
}
