package dev.kvasir.error;

import org.jspecify.annotations.Nullable;

/**
 * The byte budget of a cache, or of one of its layers, does not hold what the call needs. The cache is unchanged: close
 * or truncate sequences and call again.
 */
public class BudgetExceededException extends KvException {

  private static final long serialVersionUID = 1L;

  /**
   * Makes an exception.
   *
   * @param message which budget, what is held and what was needed
   * @param cause what led to it, or null
   */
  public BudgetExceededException(String message, @Nullable Throwable cause) {
    super(Code.BUDGET_EXCEEDED, message, cause);
  }
}
