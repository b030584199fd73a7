package dev.kvasir.error;

import org.jspecify.annotations.Nullable;

/**
 * Appended data holds a NaN, an infinity or a magnitude above 32752. The usual reason is a model that has diverged,
 * not a wrong call, which is why it has a type of its own. Nothing was appended.
 */
public class NotFiniteException extends IllegalArgumentException {

  private static final long serialVersionUID = 1L;

  /**
   * Makes an exception.
   *
   * @param message the element and its place
   * @param cause what led to it, or null
   */
  public NotFiniteException(String message, @Nullable Throwable cause) {
    super(message, cause);
  }
}
