package dev.kvasir.runner.file;

import java.io.IOException;

/** A model folder that cannot be run: something is missing, malformed or not supported. The message names it. */
public final class ModelException extends IOException {

  private static final long serialVersionUID = 1L;

  /** With what is wrong. */
  public ModelException(String message) {
    super(message);
  }

  /** With what is wrong and why. */
  public ModelException(String message, Throwable cause) {
    super(message, cause);
  }
}
