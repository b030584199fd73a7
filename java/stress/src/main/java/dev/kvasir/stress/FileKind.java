package dev.kvasir.stress;

import java.nio.file.Path;

/**
 * A kind of file that is read.
 *
 * @param name what errors call it
 * @param path a good one
 * @param reader reads all of one, and may throw an IOException or an IllegalArgumentException
 */
record FileKind(String name, Path path, Reader reader) {

  /** Reads a file to its end. */
  interface Reader {
    void read(Path path) throws Exception;
  }
}
