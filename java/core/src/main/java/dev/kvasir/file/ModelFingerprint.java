package dev.kvasir.file;

import dev.kvasir.internal.file.ModelFiles;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.util.List;

/**
 * What tells one model from another: 32 bytes made of its content. Sequences are restored only into caches whose model has
 * the fingerprint of the one that made them.
 */
public final class ModelFingerprint extends Digest {

  private static final int CHUNK = 1 << 20;

  private ModelFingerprint(byte[] bytes) {
    super(bytes);
  }

  /**
   * Of the content of files, in this order: weights, and adapters that change what keys and values are. Names do not count.
   *
   * <p>Where a model is in several GGUF files, the first stands for all of them, unless they are given themselves. A folder
   * in the layout of Hugging Face stands for its {@code config.json} and its weights, by the names of their files.
   *
   * @param files one or more
   * @return their fingerprint
   * @throws IOException if one of them cannot be read, a file of the same model is missing, or one is a part of a model
   *     whose others it does not stand for
   * @throws IllegalArgumentException if there are none
   */
  public static ModelFingerprint of(List<Path> files) throws IOException {
    if (files.isEmpty()) {
      throw new IllegalArgumentException("no files");
    }
    MessageDigest all = sha256();
    all.update("kvasir model files 1\n".getBytes(StandardCharsets.US_ASCII));
    ByteBuffer chunk = ByteBuffer.allocateDirect(CHUNK);
    for (Path file : ModelFiles.of(files)) {
      MessageDigest one = sha256();
      try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ)) {
        while (channel.read(chunk) >= 0) {
          one.update(chunk.flip());
          chunk.clear();
        }
      }
      all.update(one.digest());
    }
    return new ModelFingerprint(all.digest());
  }

  /**
   * The same for one file, the first of several, or a folder.
   *
   * @param file the file, or the folder
   * @return its fingerprint
   * @throws IOException as {@link #of(List)}
   */
  public static ModelFingerprint of(Path file) throws IOException {
    return of(List.of(file));
  }

  /**
   * Of whatever a caller knows its model by, such as a digest of its own.
   *
   * @param identity any bytes
   * @return their fingerprint
   */
  public static ModelFingerprint of(byte[] identity) {
    MessageDigest all = sha256();
    all.update("kvasir model bytes 1\n".getBytes(StandardCharsets.US_ASCII));
    return new ModelFingerprint(all.digest(identity));
  }
}
