package dev.kvasir.tensor;

import dev.kvasir.internal.json.Json;
import java.io.IOException;
import java.nio.file.Path;
import org.jspecify.annotations.Nullable;

/** A file that is no valid safetensors file, or not the one that was expected. */
public class SafetensorsException extends IOException {

  private static final long serialVersionUID = 1L;

  /**
   * Makes an exception.
   *
   * @param file the file
   * @param problem what is wrong with it, with the offending values
   * @param cause what led to it, or null
   */
  public SafetensorsException(Path file, String problem, @Nullable Throwable cause) {
    super(file + ": " + Json.bounded(problem), cause);
  }
}
