package dev.kvasir.internal.json;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.channels.OverlappingFileLockException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFileAttributeView;
import java.nio.file.attribute.PosixFilePermission;
import java.time.Duration;
import java.time.Instant;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import org.jspecify.annotations.Nullable;

/**
 * Writes files whole or not at all. Whoever opens one meanwhile, or after a crash, finds the old file or the new one and
 * never a part: the data go to a temporary file in the same folder, to the disk, and then under the name.
 *
 * <p>A symbolic link stays one, and what it leads to is replaced. A file that is replaced hands its permissions on.
 * Temporary files that a killed process left in the folder are removed by whoever writes there next.
 */
public final class FileReplacement {

  private static final String PREFIX = ".kvasir-";
  private static final String SUFFIX = ".tmp";
  /** Younger ones may belong to a writer that is about to lock its file. */
  private static final Duration LEAST_AGE = Duration.ofMinutes(1);

  /** What a file is to hold. */
  public interface Content {
    void writeTo(FileChannel channel) throws IOException;
  }

  private FileReplacement() {}

  /** The same for a text, in UTF-8. */
  public static void write(Path path, String text) throws IOException {
    ByteBuffer bytes = StandardCharsets.UTF_8.encode(text);
    write(
        path,
        channel -> {
          while (bytes.hasRemaining()) {
            channel.write(bytes);
          }
        });
  }

  /** Throws IOException where the file cannot be written; an older one is then unchanged. */
  public static void write(Path path, Content content) throws IOException {
    Path target = followLinks(path.toAbsolutePath());
    Path folder = target.getParent();
    if (folder == null || target.getFileName() == null) {
      throw new IOException(path + " is no file name");
    }
    if (Files.exists(target) && !Files.isRegularFile(target)) {
      throw new IOException(path + " is there and no regular file");
    }
    removeAbandoned(folder);
    // A name of its own: one made from the file's might be too long where that is not.
    String unique = Long.toHexString(ThreadLocalRandom.current().nextLong());
    Path temporary = folder.resolve(PREFIX + unique + SUFFIX);
    try {
      try (FileChannel channel =
              FileChannel.open(temporary, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
          @SuppressWarnings("unused") // held until the file is whole
          FileLock lock = lock(channel)) {
        handOnPermissions(target, temporary);
        content.writeTo(channel);
        channel.force(true);
        Files.move(temporary, target, StandardCopyOption.ATOMIC_MOVE);
      }
    } catch (Throwable e) { // callbacks may throw anything
      Files.deleteIfExists(temporary);
      throw e;
    }
    // The new name must reach the disk as well. Where folders cannot be opened, the system sees to it by itself.
    try (FileChannel channel = FileChannel.open(folder, StandardOpenOption.READ)) {
      channel.force(true);
    } catch (IOException e) {
      return;
    }
  }

  /** Where a link, or a chain of them, leads; that need not exist. */
  private static Path followLinks(Path path) throws IOException {
    Path at = path;
    for (int links = 0; Files.isSymbolicLink(at); links++) {
      if (links == 40) {
        throw new IOException(path + " leads through more than 40 symbolic links");
      }
      at = at.resolveSibling(Files.readSymbolicLink(at));
    }
    return at;
  }

  private static void handOnPermissions(Path target, Path temporary) throws IOException {
    PosixFileAttributeView view = Files.getFileAttributeView(target, PosixFileAttributeView.class);
    if (view == null) {
      return;
    }
    try {
      Set<PosixFilePermission> permissions = view.readAttributes().permissions();
      Files.setPosixFilePermissions(temporary, permissions);
    } catch (NoSuchFileException e) {
      return; // a new file has those that the process gives
    }
  }

  /** Null where the file system has no locks. */
  private static @Nullable FileLock lock(FileChannel channel) {
    try {
      return channel.tryLock();
    } catch (IOException e) {
      return null;
    }
  }

  /** A lock ends with its process: a file that can be locked is nobody's. */
  private static void removeAbandoned(Path folder) {
    Instant limit = Instant.now().minus(LEAST_AGE);
    try (DirectoryStream<Path> found = Files.newDirectoryStream(folder, PREFIX + "*" + SUFFIX)) {
      for (Path file : found) {
        if (Files.getLastModifiedTime(file).toInstant().isAfter(limit)) {
          continue;
        }
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.WRITE);
            FileLock lock = channel.tryLock()) {
          if (lock != null) {
            Files.deleteIfExists(file);
          }
        } catch (OverlappingFileLockException e) {
          continue; // of this JVM
        }
      }
    } catch (IOException | DirectoryIteratorException e) {
      return; // tidying up is no reason to fail
    }
  }
}
