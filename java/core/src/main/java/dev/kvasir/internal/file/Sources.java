package dev.kvasir.internal.file;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Files to read. */
public final class Sources {

  private Sources() {}

  /** Whatever is no regular file, and might keep a reader waiting for ever, is refused. */
  public static FileChannel open(Path path) throws IOException {
    if (!Files.exists(path)) {
      throw new NoSuchFileException(path.toString());
    }
    if (!Files.isRegularFile(path)) {
      throw new IOException(path + " is no regular file");
    }
    return FileChannel.open(path, StandardOpenOption.READ);
  }
}
