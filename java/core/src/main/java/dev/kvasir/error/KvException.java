package dev.kvasir.error;

import org.jspecify.annotations.Nullable;

/**
 * What went wrong in a cache, other than a wrong argument ({@link IllegalArgumentException}) or the use of something
 * closed ({@link IllegalStateException}).
 */
public class KvException extends RuntimeException {

  private static final long serialVersionUID = 1L;

  /** Kinds of failure. */
  public enum Code {
    /** A byte budget does not hold what the call needs. Always a {@link BudgetExceededException}. */
    BUDGET_EXCEEDED,
    /** The operating system refused memory within the budget. */
    OUT_OF_MEMORY,
    /** This machine or build does not have what was asked for. Always a {@link NativeUnavailableException}. */
    UNAVAILABLE,
    /** The device reported a failure of its own: caches there are lost. */
    DEVICE_FAILED,
    /** A saved sequence is damaged, cut off or of another cache. Always a {@link KvFileException}. */
    BAD_FILE,
    /** A failure that the library has no name for: a bug. */
    INTERNAL
  }

  /** The kind of failure. */
  private final Code code;

  /**
   * Makes an exception.
   *
   * @param code the kind of failure
   * @param message what happened, with the offending values
   * @param cause what led to it, or null
   */
  public KvException(Code code, String message, @Nullable Throwable cause) {
    super(message, cause);
    this.code = code;
  }

  /**
   * The kind of failure.
   *
   * @return the code
   */
  public Code code() {
    return code;
  }
}
