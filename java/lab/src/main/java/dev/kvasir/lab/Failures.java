package dev.kvasir.lab;

import dev.kvasir.calibrate.ProfileException;
import dev.kvasir.error.KvException;
import dev.kvasir.error.NativeUnavailableException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;
import java.util.Optional;

/** What programs say where they fail. */
public final class Failures {

  private Failures() {}

  /** A line about what users can mend; empty for anything else, which is a bug. */
  public static Optional<String> line(Exception thrown) {
    Exception failure = thrown instanceof UncheckedIOException wrapped ? wrapped.getCause() : thrown;
    if (failure instanceof FileSystemException file) {
      return Optional.of(ofFile(file));
    }
    boolean users =
        failure instanceof IOException
            || failure instanceof KvException
            || failure instanceof ProfileException
            || failure instanceof NativeUnavailableException
            || failure instanceof IllegalArgumentException;
    return users ? Optional.of(String.valueOf(failure.getMessage())) : Optional.empty();
  }

  /** Most of these have a name for a message, and say by their class what is wrong with it. */
  private static String ofFile(FileSystemException failure) {
    if (failure instanceof NoSuchFileException) {
      return "there is no file " + failure.getMessage();
    }
    if (failure instanceof AccessDeniedException) {
      return failure.getMessage() + " must not be read, or written to";
    }
    return failure.getReason() == null
        ? failure.getMessage() + ": " + failure.getClass().getSimpleName()
        : failure.getMessage();
  }
}
