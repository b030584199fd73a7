package dev.kvasir.runner.file;

import dev.kvasir.tensor.Safetensors;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** Files that are read whole: configurations, vocabularies, templates. */
public final class Texts {

  /** Far above any of them: vocabularies take some 30 MB. */
  private static final long MAX_BYTES = Safetensors.MAX_HEADER_BYTES;

  private Texts() {}

  /**
   * A file in UTF-8.
   *
   * @throws ModelException if it is longer than any such file
   */
  public static String read(Path file) throws IOException {
    long size = Files.size(file);
    if (size > MAX_BYTES) {
      throw new ModelException(file + " has " + size + " bytes; up to " + MAX_BYTES + " can be read");
    }
    return new String(Files.readAllBytes(file), StandardCharsets.UTF_8);
  }
}
