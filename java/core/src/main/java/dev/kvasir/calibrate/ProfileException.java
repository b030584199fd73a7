package dev.kvasir.calibrate;

import dev.kvasir.internal.json.Json;
import org.jspecify.annotations.Nullable;

/** A profile that cannot be used: damaged, of another model, of another version, or not a profile at all. */
public class ProfileException extends RuntimeException {

  private static final long serialVersionUID = 1L;

  /**
   * Makes an exception.
   *
   * @param message which file, and what is wrong with it
   * @param cause what led to it, or null
   */
  public ProfileException(String message, @Nullable Throwable cause) {
    super(Json.bounded(message), cause);
  }
}
