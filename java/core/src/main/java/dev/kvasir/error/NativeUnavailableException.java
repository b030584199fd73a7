package dev.kvasir.error;

import org.jspecify.annotations.Nullable;

/**
 * The native library, or a backend that was asked for by name, cannot run here. The message says what was wanted, what
 * was tried, why it failed and what to do.
 */
public class NativeUnavailableException extends KvException {

  private static final long serialVersionUID = 1L;

  /**
   * Makes an exception.
   *
   * @param message what was wanted, what was tried, what to do
   * @param cause what led to it, or null
   */
  public NativeUnavailableException(String message, @Nullable Throwable cause) {
    super(Code.UNAVAILABLE, message, cause);
  }
}
