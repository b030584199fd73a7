package dev.kvasir.prefix.store;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.time.Instant;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A folder for files that are not finished, inside that of a store. It is locked as long as its process lives, so that
 * another one knows what it may clean up.
 */
final class OwnFolder implements AutoCloseable {

  private static final String PREFIX = "unfinished-";
  private static final String NEW = "new-";
  private static final String LOCK = "lock";
  /**
   * The names of this process's, by whatever path they are reached. Their locks must not even be opened: by POSIX, a
   * process loses its lock on a file when it closes that file anywhere.
   */
  private static final Set<Path> ALIVE = ConcurrentHashMap.newKeySet();

  private final Path folder;
  private final FileChannel lock;
  private final AtomicLong next = new AtomicLong();

  private OwnFolder(Path folder, FileChannel lock) {
    this.folder = folder;
    this.lock = lock;
  }

  /** A new one, after those that nobody holds any more are gone. */
  static OwnFolder create(Path of) throws IOException {
    try (DirectoryStream<Path> all = Files.newDirectoryStream(of, PREFIX + "*")) {
      for (Path each : all) {
        removeIfLeft(each);
      }
    }
    try (DirectoryStream<Path> all = Files.newDirectoryStream(of, NEW + "*")) {
      for (Path each : all) {
        if (Files.getLastModifiedTime(each).toInstant().isBefore(Instant.now().minus(Duration.ofHours(1)))) {
          remove(each);
        }
      }
    } catch (NoSuchFileException e) {
      // Somebody has just given it its name.
    }
    // Locked under a name that nobody cleans up for an hour, then given its own.
    Path hidden = Files.createDirectory(of.resolve(NEW + UUID.randomUUID()));
    Path named = of.resolve(PREFIX + UUID.randomUUID());
    FileChannel lock =
        FileChannel.open(hidden.resolve(LOCK), StandardOpenOption.WRITE, StandardOpenOption.CREATE_NEW);
    try {
      lock.lock();
      ALIVE.add(named.getFileName());
      Files.move(hidden, named);
      return new OwnFolder(named, lock);
    } catch (IOException e) {
      ALIVE.remove(named.getFileName());
      lock.close();
      throw e;
    }
  }

  private static void removeIfLeft(Path folder) throws IOException {
    if (ALIVE.contains(folder.getFileName())) {
      return;
    }
    try (FileChannel channel = FileChannel.open(folder.resolve(LOCK), StandardOpenOption.WRITE)) {
      FileLock taken = channel.tryLock();
      if (taken != null) {
        remove(folder);
      }
    } catch (NoSuchFileException e) {
      remove(folder); // its remover died, or is at work
    } catch (OverlappingFileLockException e) {
      return; // another store of this process is at it
    }
  }

  private static void remove(Path folder) throws IOException {
    try (DirectoryStream<Path> files = Files.newDirectoryStream(folder)) {
      for (Path file : files) {
        Files.deleteIfExists(file);
      }
      Files.deleteIfExists(folder);
    } catch (NoSuchFileException e) {
      return; // another process was faster
    }
  }

  Path newFile() {
    return folder.resolve(Long.toString(next.getAndIncrement()));
  }

  @Override
  public void close() {
    try (lock) {
      remove(folder);
    } catch (IOException e) {
      return; // the next store cleans up
    } finally {
      ALIVE.remove(folder.getFileName());
    }
  }
}
