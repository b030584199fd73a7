package dev.kvasir.file;

import dev.kvasir.error.KvFileException;
import dev.kvasir.internal.file.FileCheck;
import dev.kvasir.internal.file.Sources;
import dev.kvasir.internal.file.Transfer;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Path;

/** Sequence files without a cache. */
public final class KvFile {

  private KvFile() {}

  /**
   * Reads all of a file and checks every byte of it.
   *
   * @param path the file
   * @return what it says of itself
   * @throws KvFileException if it is damaged, cut off or no sequence file
   * @throws IOException if it cannot be read
   */
  public static FileInfo verify(Path path) throws IOException {
    return verify(path, FileOptions.defaults());
  }

  /**
   * The same, with a listener, and until it is cancelled.
   *
   * @param path the file
   * @param options progress and cancellation count
   * @return what it says of itself
   * @throws KvFileException if it is damaged, cut off or no sequence file, or nobody wanted more of it
   * @throws IOException if it cannot be read
   */
  public static FileInfo verify(Path path, FileOptions options) throws IOException {
    FileCheck check = check(path, options);
    return new FileInfo(
        check.size(), check.blocks(), check.lengths(), check.tokens().length, check.fingerprint(), check.description());
  }

  /**
   * The token ids that a sequence was saved with.
   *
   * @param path the file
   * @return them; empty where its writer gave none
   * @throws KvFileException if it is damaged, cut off or no sequence file
   * @throws IOException if it cannot be read
   */
  public static int[] tokens(Path path) throws IOException {
    return check(path, FileOptions.defaults()).tokens();
  }

  private static FileCheck check(Path path, FileOptions options) throws IOException {
    try (FileChannel channel = Sources.open(path)) {
      FileCheck check = new FileCheck(channel.size());
      check.read(channel, new Transfer(options.progress()::moved, options.cancelWhen()));
      return check;
    }
  }
}
