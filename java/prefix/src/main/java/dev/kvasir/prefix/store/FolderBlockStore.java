package dev.kvasir.prefix.store;

import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import dev.kvasir.prefix.policy.EvictionPolicy;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/**
 * Blocks in files, one each, named by their names. A file is whole or not there, whenever a process or a machine dies: it
 * is written under another name, in a folder that belongs to this store while it lives, and then renamed. What dead
 * processes left is cleaned up by the next store that is opened.
 *
 * <p>Several processes may share a folder. Each gives up files by the books that it keeps: what was there when it opened,
 * and what it has put and found since.
 */
public final class FolderBlockStore implements BlockStore {

  private static final int AHEAD = 4;
  private static final Pattern BLOCK = Pattern.compile("[0-9a-f]{64}");

  /** Size, when it came, by the clock of the wall, since it outlives processes, and whether somebody has asked for it. */
  private record Entry(long bytes, long since, boolean used) {}

  private final Path folder;
  private final long budget;
  private final long mostBytes;
  private final OwnFolder own;
  private final ExecutorService executor;
  private final ExecutorService readers;
  private final EvictionPolicy<ChainHash> policy;
  private final Map<ChainHash, Entry> entries = new HashMap<>();
  private final Ages ages = new Ages();
  private long held;

  /**
   * Opens a folder, which is made if it does not exist.
   *
   * @param folder whose files are this store's
   * @param budget the most bytes of blocks in it
   * @param policy what goes first
   * @throws IOException if the folder cannot be made or read
   * @throws IllegalArgumentException if the budget is negative
   */
  public FolderBlockStore(Path folder, long budget, EvictionPolicy.Factory policy) throws IOException {
    this(folder, budget, Integer.MAX_VALUE, policy);
  }

  /**
   * Opens a folder, which is made if it does not exist, for blocks of a known size.
   *
   * @param folder whose files are this store's
   * @param budget the most bytes of blocks in it
   * @param mostBytes the most bytes of a block that is asked for: a larger file under its name is damaged, and deleted
   * @param policy what goes first
   * @throws IOException if the folder cannot be made or read
   * @throws IllegalArgumentException if the budget is negative
   */
  public FolderBlockStore(Path folder, long budget, long mostBytes, EvictionPolicy.Factory policy) throws IOException {
    if (budget < 0) {
      throw new IllegalArgumentException("a budget of " + budget + " bytes");
    }
    this.folder = folder;
    this.budget = budget;
    this.mostBytes = Math.min(mostBytes, Integer.MAX_VALUE);
    this.policy = policy.create(budget);
    Files.createDirectories(folder);
    this.own = OwnFolder.create(folder);
    this.executor = StoreThreads.create("kvasir-folder", 2);
    this.readers = StoreThreads.create("kvasir-folder-read", AHEAD);
    takeStock();
  }

  @Override
  public CompletableFuture<Integer> containsLongest(List<ChainHash> names, Duration deadline) {
    return work(
        () -> {
          int count = 0;
          while (count < names.size() && isThere(names.get(count))) {
            count++;
          }
          return count;
        });
  }

  @Override
  public CompletableFuture<Integer> getMany(List<ChainHash> names, Duration deadline, Arrival arrival) {
    long end = System.nanoTime() + TimeUnit.NANOSECONDS.convert(deadline);
    return work(
        () -> {
          int count = 0;
          int asked = 0;
          // Some are read while those before them are handed over.
          Deque<CompletableFuture<@Nullable ByteBuffer>> coming = new ArrayDeque<>();
          while (count < names.size() && System.nanoTime() - end < 0) {
            while (asked < names.size() && coming.size() < AHEAD) {
              ChainHash name = names.get(asked++);
              coming.add(StoreThreads.call(readers, () -> read(name)));
            }
            ByteBuffer bytes = coming.remove().join();
            if (bytes == null) {
              break;
            }
            count++;
            if (!arrival.block(count - 1, bytes)) {
              break;
            }
          }
          Instant now = Instant.now();
          for (int i = count - 1; i >= 0; i--) {
            touch(names.get(i), timeOf(now, i), true);
          }
          return count;
        });
  }

  @Override
  public CompletableFuture<Integer> putMany(List<KvBlock> blocks, Duration deadline) {
    return putMany(List.of(), blocks, deadline);
  }

  @Override
  public CompletableFuture<Integer> putMany(List<ChainHash> before, List<KvBlock> blocks, Duration deadline) {
    return work(
        () -> {
          if (before.stream().allMatch(this::isThere)) {
            keep(before, blocks);
          }
          int count = 0;
          for (KvBlock block : blocks) {
            count += isThere(block.hash()) ? 1 : 0;
          }
          return count;
        });
  }

  /**
   * Writes the first block first and stops where one has no room: what a full disk, a small budget or a death leaves is the
   * beginning of the text, of use without the rest. The books hear of the last one first, which is then the first to go.
   */
  private void keep(List<ChainHash> before, List<KvBlock> blocks) throws IOException {
    Instant now = Instant.now();
    Set<ChainHash> kept = new HashSet<>(before);
    Set<ChainHash> written = new HashSet<>();
    long bytes = 0;
    int next = 0;
    try {
      for (; next < blocks.size(); next++) {
        KvBlock block = blocks.get(next);
        bytes += block.bytes().remaining();
        if (!isThere(block.hash())) {
          if (bytes > budget || !makeRoom(block.bytes().remaining(), kept)) {
            return;
          }
          write(block, timeOf(now, before.size() + next));
          written.add(block.hash());
        }
        kept.add(block.hash());
      }
    } finally {
      report(before, blocks.subList(0, next), now, written);
    }
  }

  private void report(List<ChainHash> before, List<KvBlock> blocks, Instant now, Set<ChainHash> written) {
    for (int i = blocks.size() - 1; i >= 0; i--) {
      ChainHash name = blocks.get(i).hash();
      if (!written.contains(name)) {
        touch(name, timeOf(now, before.size() + i), true);
        continue;
      }
      synchronized (this) {
        Entry entry = entries.get(name);
        if (entry != null) { // another thread may have forgotten it
          policy.added(name, entry.bytes);
        }
      }
    }
    for (int i = before.size() - 1; i >= 0; i--) {
      touch(before.get(i), timeOf(now, i), false);
    }
  }

  /** When a block of a text was used, for those that open the folder later: the last one is the oldest. */
  private static FileTime timeOf(Instant text, int index) {
    return FileTime.from(text.minus(index, ChronoUnit.MICROS));
  }

  @Override
  public CompletableFuture<Void> delete(List<ChainHash> names, Duration deadline) {
    return work(
        () -> {
          for (ChainHash name : names) {
            forget(name, false);
            Files.deleteIfExists(fileOf(name));
          }
          return null;
        });
  }

  @Override
  public synchronized Holdings holdings() {
    return ages.holdings(entries.size(), held);
  }

  /** Lets what is under way finish, and gives the folder free. */
  @Override
  public void close() {
    StoreThreads.end(executor);
    StoreThreads.end(readers);
    own.close();
  }

  private void takeStock() throws IOException {
    record Found(ChainHash name, long bytes, FileTime time) {}
    List<Found> all = new ArrayList<>();
    try (DirectoryStream<Path> folders = Files.newDirectoryStream(folder, "[0-9a-f][0-9a-f]")) {
      for (Path each : folders) {
        try (DirectoryStream<Path> files = Files.newDirectoryStream(each)) {
          for (Path file : files) {
            String name = file.getFileName().toString();
            BasicFileAttributes is = BLOCK.matcher(name).matches() ? find(file) : null;
            if (is != null) {
              all.add(new Found(ChainHash.of(HexFormat.of().parseHex(name)), is.size(), is.lastModifiedTime()));
            }
          }
        } catch (NoSuchFileException e) {
          continue; // somebody has cleaned up
        }
      }
    }
    all.sort(Comparator.comparing(Found::time));
    synchronized (this) {
      all.forEach(found -> note(found.name, found.bytes, found.time.toMillis()));
    }
    makeRoom(0, Set.of());
  }

  /** What a file is; null where another process has given it up meanwhile. */
  private static @Nullable BasicFileAttributes find(Path file) throws IOException {
    try {
      return Files.readAttributes(file, BasicFileAttributes.class);
    } catch (NoSuchFileException e) {
      return null;
    }
  }

  private Path fileOf(ChainHash name) {
    String text = name.toString();
    return folder.resolve(text.substring(0, 2)).resolve(text);
  }

  private boolean isThere(ChainHash name) {
    return Files.exists(fileOf(name));
  }

  private @Nullable ByteBuffer read(ChainHash name) {
    try (FileChannel channel = FileChannel.open(fileOf(name), StandardOpenOption.READ)) {
      long size = channel.size();
      if (size > mostBytes) {
        forget(name, false);
        Files.deleteIfExists(fileOf(name));
        return null;
      }
      ByteBuffer bytes = ByteBuffer.allocateDirect((int) size);
      while (bytes.hasRemaining() && channel.read(bytes) >= 0) {}
      return bytes.flip();
    } catch (NoSuchFileException e) {
      forget(name, false);
      return null;
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** Writes a block for which there is room, which is its own or given back. Policies do not know of it yet. */
  private void write(KvBlock block, FileTime time) throws IOException {
    Path file = fileOf(block.hash());
    Path part = own.newFile();
    boolean done = false;
    try {
      try (FileChannel channel =
          FileChannel.open(part, StandardOpenOption.WRITE, StandardOpenOption.CREATE_NEW)) {
        ByteBuffer bytes = block.bytes().duplicate();
        while (bytes.hasRemaining()) {
          channel.write(bytes);
        }
      }
      Files.setLastModifiedTime(part, time);
      Files.createDirectories(file.getParent());
      Files.move(part, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
      done = true;
    } finally {
      synchronized (this) {
        int bytes = block.bytes().remaining();
        Entry before = done ? entries.put(block.hash(), new Entry(bytes, System.currentTimeMillis(), false)) : null;
        held -= done ? before == null ? 0 : before.bytes : bytes;
      }
      Files.deleteIfExists(part);
    }
  }

  /**
   * Goes later, by the books and for those that will open the folder later. It counts as used where somebody asks for it,
   * and where somebody has; not where more of its text has come.
   */
  private void touch(ChainHash name, FileTime time, boolean asked) {
    Path file = fileOf(name);
    try {
      long size = Files.size(file);
      Files.setLastModifiedTime(file, time);
      synchronized (this) {
        Entry entry = entries.get(name);
        if (entry == null) {
          note(name, size, System.currentTimeMillis());
          return;
        }
        if (!asked && !entry.used) {
          policy.removed(name);
        }
        policy.added(name, entry.bytes); // used where it is there, else back from where its batch had put it aside
        entries.put(name, new Entry(entry.bytes, entry.since, entry.used || asked));
      }
    } catch (IOException e) {
      forget(name, false); // it went meanwhile
    }
  }

  /**
   * Takes room for so many bytes from blocks other than these, which policies hear of anew later. False where there is none.
   */
  private boolean makeRoom(long bytes, Set<ChainHash> kept) throws IOException {
    while (true) {
      ChainHash victim;
      synchronized (this) {
        if (held <= budget - bytes) {
          held += bytes;
          return true;
        }
        victim = policy.evict();
      }
      if (victim == null) {
        return false;
      }
      if (!kept.contains(victim)) {
        forget(victim, true);
        Files.deleteIfExists(fileOf(victim));
      }
    }
  }

  private void note(ChainHash name, long bytes, long since) {
    Entry before = entries.put(name, new Entry(bytes, since, false));
    held += bytes - (before == null ? 0 : before.bytes);
    policy.added(name, bytes);
  }

  private synchronized void forget(ChainHash name, boolean evicted) {
    Entry entry = entries.remove(name);
    policy.removed(name);
    if (entry != null) {
      held -= entry.bytes;
      if (evicted) {
        ages.evicted(Duration.ofMillis(System.currentTimeMillis() - entry.since).toNanos());
      }
    }
  }

  private <T> CompletableFuture<T> work(Callable<T> task) {
    return StoreThreads.call(executor, task);
  }
}
