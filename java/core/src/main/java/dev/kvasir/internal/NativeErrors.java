package dev.kvasir.internal;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvException;
import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.error.NotFiniteException;

/**
 * The one place where native errors become Java exceptions. They arrive as plain RuntimeExceptions whose message is
 * {@code <code name>: <text>}.
 */
public final class NativeErrors {

  private NativeErrors() {}

  /** The typed exception for a failure of native code; any other exception comes back as it is. */
  public static RuntimeException translate(RuntimeException failure) {
    if (failure.getClass() != RuntimeException.class) {
      return failure;
    }
    String message = String.valueOf(failure.getMessage());
    int colon = message.indexOf(": ");
    String code = colon < 0 ? "" : message.substring(0, colon);
    String text = message.substring(colon < 0 ? 0 : colon + 2);
    switch (code) {
      case "invalid_argument":
        return new IllegalArgumentException(text, failure);
      case "not_finite":
        return new NotFiniteException(text, failure);
      case "unknown_sequence":
        return new IllegalStateException(text, failure);
      case "budget_exceeded":
        return new BudgetExceededException(text, failure);
      case "out_of_memory":
        return new KvException(KvException.Code.OUT_OF_MEMORY, text, failure);
      case "device_failed":
        return new KvException(KvException.Code.DEVICE_FAILED, text, failure);
      case "unavailable":
        return new NativeUnavailableException(text, failure);
      default:
        return new KvException(KvException.Code.INTERNAL, message, failure);
    }
  }
}
