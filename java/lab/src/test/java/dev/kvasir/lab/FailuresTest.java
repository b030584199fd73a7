package dev.kvasir.lab;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.util.Optional;
import org.junit.jupiter.api.Test;

/** Lines that name the file and say what is wrong with it. */
class FailuresTest {

  @Test
  void filesAreNamedWithWhatIsWrong() {
    assertEquals("there is no file a", line(new NoSuchFileException("a")));
    assertEquals("there is no file a", line(new UncheckedIOException(new NoSuchFileException("a"))));
    assertEquals("a must not be read, or written to", line(new AccessDeniedException("a")));
    assertEquals("a: No space left on device", line(new FileSystemException("a", null, "No space left on device")));
    assertEquals("a: NotDirectoryException", line(new NotDirectoryException("a")));
    assertEquals("a is wrong", line(new IOException("a is wrong")));
    assertEquals(Optional.empty(), Failures.line(new NullPointerException()));
  }

  private static String line(Exception failure) {
    return Failures.line(failure).orElseThrow();
  }
}
