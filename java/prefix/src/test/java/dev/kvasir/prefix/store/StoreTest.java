package dev.kvasir.prefix.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.ChildJvm;
import dev.kvasir.file.BlockMemory;
import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import dev.kvasir.prefix.policy.Eviction;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

class StoreTest {

  private static final Duration SOON = Duration.ofSeconds(10);

  @TempDir Path folder;

  private static List<KvBlock> blocks(int seed, int count, int size) {
    List<KvBlock> blocks = new ArrayList<>();
    int[] tokens = IntStream.range(0, count).map(i -> seed).toArray();
    for (ChainHash name : ChainHash.chain(new byte[32], new byte[0], 0, 1, tokens)) {
      ByteBuffer bytes = ByteBuffer.allocate(size);
      bytes.putInt(0, name.hashCode());
      blocks.add(new KvBlock(name, bytes));
    }
    return blocks;
  }

  private static List<ChainHash> names(List<KvBlock> blocks) {
    return blocks.stream().map(KvBlock::hash).toList();
  }

  private static int get(BlockStore store, List<KvBlock> wanted) {
    return store
        .getMany(
            names(wanted),
            SOON,
            (index, bytes) -> {
              assertEquals(wanted.get(index).bytes(), bytes);
              return true;
            })
        .join();
  }

  /** Pipes are disks that never answer. */
  @Test
  @Timeout(60)
  void readsThatHaveNotBegunAtTheEndAreCancelled() throws Exception {
    List<KvBlock> blocks = blocks(5, 8, 100);
    FolderBlockStore store = new FolderBlockStore(folder, 1 << 20, Eviction.LRU);
    store.putMany(blocks, SOON).join();
    List<Path> files;
    try (Stream<Path> all = Files.walk(folder)) {
      files = all.filter(file -> Files.isRegularFile(file) && Files.isReadable(file) && size(file) == 100).toList();
    }
    assertEquals(8, files.size());
    for (Path file : files) {
      Files.delete(file);
      Assumptions.assumeTrue(new ProcessBuilder("mkfifo", file.toString()).start().waitFor() == 0, "no mkfifo");
    }
    CompletableFuture<Integer> first = store.getMany(names(blocks).subList(0, 4), SOON, (index, bytes) -> true);
    awaitThreads("kvasir-folder-read-\\d+", 4, Thread.State.RUNNABLE);
    CompletableFuture<Integer> second = store.getMany(names(blocks).subList(4, 8), SOON, (index, bytes) -> true);
    awaitThreads("kvasir-folder-\\d+", 2, Thread.State.WAITING);
    Thread.currentThread().interrupt(); // who closes it does not wait
    store.close();
    assertTrue(Thread.interrupted());
    ExecutionException ended = assertThrows(ExecutionException.class, () -> second.get(5, TimeUnit.SECONDS));
    assertInstanceOf(CancellationException.class, ended.getCause());
    for (Path file : files) {
      new RandomAccessFile(file.toFile(), "rw").close(); // who opens it to read goes on
    }
    first.exceptionally(failure -> 0).get(20, TimeUnit.SECONDS);
  }

  private static long size(Path file) {
    return file.toFile().length();
  }

  private static void awaitThreads(String name, int count, Thread.State state) throws InterruptedException {
    while (Thread.getAllStackTraces().keySet().stream()
            .filter(thread -> thread.getName().matches(name) && thread.getState() == state)
            .count()
        < count) {
      Thread.sleep(20);
    }
  }

  private List<BlockStore> stores(long budget) throws IOException {
    return stores(budget, Eviction.LRU);
  }

  private List<BlockStore> stores(long budget, Eviction policy) throws IOException {
    return List.of(
        new MemoryBlockStore(budget, policy), new FolderBlockStore(folder.resolve("blocks" + budget), budget, policy));
  }

  @Test
  void keepsWhatItIsGiven() throws IOException {
    for (BlockStore store : stores(1 << 20)) {
      try (store) {
        List<KvBlock> all = blocks(1, 6, 100);
        assertEquals(0, store.containsLongest(names(all), SOON).join());
        assertEquals(4, store.putMany(all.subList(0, 4), SOON).join());
        assertEquals(4, store.putMany(all.subList(0, 4), SOON).join());
        assertEquals(4, store.containsLongest(names(all), SOON).join());
        assertEquals(4, get(store, all));
        store.delete(names(all.subList(2, 3)), SOON).join();
        assertEquals(2, get(store, all));
        assertEquals(3, store.holdings().blocks());
        assertEquals(300, store.holdings().bytes());
        assertEquals(0, get(store, blocks(2, 3, 100)));
      }
    }
  }

  @Test
  void budgetsHoldAndTheLastBlocksGoFirst() throws IOException {
    for (BlockStore store : stores(1000)) {
      try (store) {
        List<KvBlock> first = blocks(1, 8, 100);
        List<KvBlock> second = blocks(2, 5, 100);
        store.putMany(first, SOON).join();
        assertEquals(5, store.putMany(second, SOON).join());
        assertEquals(1000, store.holdings().bytes());
        assertEquals(5, get(store, second));
        assertEquals(5, get(store, first));
        assertEquals(3, store.holdings().evicted());
        store.putMany(blocks(3, 1, 2000), SOON).join();
        assertEquals(5, get(store, first), "what never fits pushes nothing out");
      }
    }
  }

  @Test
  void aFolderIsFoundAgain() throws IOException {
    List<KvBlock> all = blocks(1, 6, 100);
    try (FolderBlockStore store = new FolderBlockStore(folder, 1 << 20, Eviction.LRU)) {
      store.putMany(all, SOON).join();
    }
    try (FolderBlockStore store = new FolderBlockStore(folder, 450, Eviction.LRU);
        FolderBlockStore other = new FolderBlockStore(folder, 1 << 20, Eviction.LRU)) {
      assertEquals(4, store.holdings().blocks());
      assertEquals(400, store.holdings().bytes());
      List<KvBlock> more = blocks(2, 2, 100);
      other.putMany(more, SOON).join();
      assertEquals(2, get(store, more), "what another process put is there");
    }
    try (var left = Files.list(folder)) {
      assertFalse(left.anyMatch(path -> path.getFileName().toString().startsWith("unfinished")));
    }
  }

  /** A file where a block's folder should be is a disk that takes no more in the middle of a text. */
  @Test
  void whatADiskTakesBeforeItIsFullIsTheBeginningOfAText() throws IOException {
    List<KvBlock> all = blocks(4, 8, 100);
    List<String> folders = names(all).stream().map(name -> name.toString().substring(0, 2)).toList();
    assertFalse(folders.subList(0, 3).contains(folders.get(3)), "another seed is needed");
    try (FolderBlockStore store = new FolderBlockStore(folder, 1 << 20, Eviction.LRU)) {
      Path full = Files.createFile(folder.resolve(folders.get(3)));
      CompletableFuture<Integer> put = store.putMany(all, SOON);
      assertThrows(CompletionException.class, put::join);
      Files.delete(full);
      assertEquals(3, get(store, all));
      assertEquals(3, store.holdings().blocks(), "and nothing that needs what is missing");
      assertEquals(300, store.holdings().bytes());
      assertEquals(8, store.putMany(all, SOON).join());
      assertEquals(8, get(store, all));
      assertEquals(800, store.holdings().bytes());
    }
  }

  @Test
  void aTextThatIsLongerThanAStoreIsKeptFromItsBeginningOn() throws IOException {
    for (BlockStore store : stores(450)) {
      try (store) {
        List<KvBlock> all = blocks(1, 8, 100);
        store.putMany(blocks(2, 2, 100), SOON).join();
        assertEquals(4, store.putMany(all, SOON).join());
        assertEquals(4, get(store, all));
        assertEquals(400, store.holdings().bytes());
        assertEquals(4, store.putMany(all, SOON).join());
        assertEquals(4, get(store, all));
      }
    }
  }

  @Test
  void theLastBlocksAreTheFirstToGoForWhoOpensAFolderLaterToo() throws IOException {
    List<KvBlock> put = blocks(1, 40, 100);
    List<KvBlock> used = blocks(2, 40, 100);
    try (FolderBlockStore store = new FolderBlockStore(folder, 1 << 20, Eviction.LRU)) {
      store.putMany(used, SOON).join();
      store.putMany(put, SOON).join();
      assertEquals(40, get(store, used));
    }
    new FolderBlockStore(folder, 6000, Eviction.LRU).close();
    try (FolderBlockStore store = new FolderBlockStore(folder, 6000, Eviction.LRU)) {
      assertEquals(20, get(store, put));
      assertEquals(40, get(store, used));
    }
  }

  @Test
  void blocksThatAreThereCountAsUsedWithThoseThatComeBehindThem() throws IOException {
    for (BlockStore store : stores(1000)) {
      try (store) {
        List<KvBlock> text = blocks(1, 7, 100);
        List<KvBlock> other = blocks(2, 3, 100);
        store.putMany(text.subList(0, 4), SOON).join();
        store.putMany(other, SOON).join();
        store.putMany(text, SOON).join();
        store.putMany(blocks(3, 3, 100), SOON).join();
        assertEquals(7, get(store, text));
        assertEquals(0, get(store, other));
      }
    }
  }

  @Test
  void blocksGoBeforeThoseThatTheyStandBehind() throws IOException {
    for (BlockStore store : stores(1000)) {
      try (store) {
        List<KvBlock> text = blocks(1, 8, 100);
        List<KvBlock> other = blocks(2, 3, 100);
        store.putMany(text.subList(0, 4), SOON).join();
        store.putMany(other, SOON).join();
        assertEquals(3, store.putMany(names(text.subList(0, 4)), text.subList(4, 7), SOON).join());
        store.putMany(blocks(3, 4, 100), SOON).join();
        assertEquals(0, store.containsLongest(names(other), SOON).join(), "it is older than all of the text");
        store.putMany(blocks(4, 4, 100), SOON).join();
        assertEquals(2, store.containsLongest(names(text), SOON).join());
        assertEquals(0, store.putMany(names(text.subList(0, 7)), text.subList(7, 8), SOON).join(), "of no use");
        assertEquals(1000, store.holdings().bytes());
      }
    }
  }

  /** Texts that come once must not be taken for such as come again because they come in parts. */
  @Test
  void aTextThatComesInPartsHasComeOnce() throws IOException {
    for (BlockStore store : stores(1000, Eviction.ARC)) {
      try (store) {
        List<KvBlock> text = blocks(1, 6, 100);
        store.putMany(text.subList(0, 3), SOON).join();
        store.putMany(names(text.subList(0, 3)), text.subList(3, 6), SOON).join();
        store.putMany(blocks(2, 5, 100), SOON).join();
        store.putMany(blocks(3, 5, 100), SOON).join();
        assertEquals(0, store.containsLongest(names(text), SOON).join());
        assertEquals(5, get(store, blocks(3, 5, 100)));
      }
    }
  }

  /** A link to nowhere is a file that another process gives up while this one looks: it is in the list, and not there. */
  @Test
  void filesThatGoWhileTheFolderIsOpenedHideNoOthers() throws IOException {
    Path all = Files.createDirectory(folder.resolve("aa"));
    int there = 0;
    for (int i = 0; i < 40; i++) {
      Path file = all.resolve("aa" + String.format("%062x", 1L << i));
      if (i % 4 == 0) {
        Files.createSymbolicLink(file, folder.resolve("nowhere"));
      } else {
        Files.write(file, new byte[100]);
        there++;
      }
    }
    try (FolderBlockStore store = new FolderBlockStore(folder, 1 << 20, Eviction.LRU)) {
      assertEquals(there, store.holdings().blocks());
    }
    try (FolderBlockStore store = new FolderBlockStore(folder, 1000, Eviction.LRU)) {
      assertEquals(10, store.holdings().blocks());
    }
  }

  /** Puts blocks until it is killed. */
  public static void main(String[] arguments) throws IOException {
    FolderBlockStore store = new FolderBlockStore(Path.of(arguments[0]), 1L << 40, Eviction.LRU);
    for (int i = 0; ; i++) {
      if (i == 20) {
        new Thread(() -> Runtime.getRuntime().halt(137)).start();
      }
      store.putMany(blocks(i, 4, 3_000_000), SOON).join();
    }
  }

  /** Another process, which opens a folder and cleans up. */
  public static final class Passerby {
    public static void main(String[] arguments) throws IOException {
      new FolderBlockStore(Path.of(arguments[0]), 1L << 40, Eviction.LRU).close();
    }
  }

  @Test
  void aSecondStoreOfAProcessDoesNotEndTheClaimOfTheFirst() throws Exception {
    try (FolderBlockStore first = new FolderBlockStore(folder, 1 << 20, Eviction.LRU);
        FolderBlockStore second = new FolderBlockStore(folder.resolve("."), 1 << 20, Eviction.LRU)) {
      assertEquals(0, new ChildJvm().run(Passerby.class, folder.toString()).status());
      assertEquals(3, first.putMany(blocks(1, 3, 100), SOON).join());
      assertEquals(3, second.putMany(blocks(2, 3, 100), SOON).join());
    }
    try (var left = Files.list(folder)) {
      assertFalse(left.anyMatch(path -> path.getFileName().toString().startsWith("unfinished")));
    }
  }

  @Test
  void aFileThatIsLargerThanAnyBlockGoes() throws IOException {
    List<KvBlock> all = blocks(1, 3, 100);
    List<KvBlock> larger = blocks(2, 3, 101);
    try (FolderBlockStore store = new FolderBlockStore(folder, 1 << 20, 100, Eviction.LRU);
        FolderBlockStore other = new FolderBlockStore(folder, 1 << 20, Eviction.LRU)) {
      other.putMany(all, SOON).join();
      other.putMany(larger, SOON).join();
      assertEquals(3, get(store, all));
      assertEquals(3, get(other, larger));
      assertEquals(0, get(store, larger));
      assertEquals(0, get(other, larger), "it is gone");
    }
  }

  @Test
  void aDeadProcessLeavesNothingHalf() throws Exception {
    for (int round = 0; round < 2; round++) {
      Path path = folder.resolve("killed");
      assertEquals(137, new ChildJvm().run(StoreTest.class, path.toString()).status());
      try (FolderBlockStore store = new FolderBlockStore(path, 1L << 40, Eviction.LRU)) {
        assertTrue(store.holdings().blocks() >= 40, store.holdings().toString());
        assertEquals(3_000_000 * store.holdings().blocks(), store.holdings().bytes());
        for (int i = 0; i < 10; i++) {
          assertEquals(4, get(store, blocks(i, 4, 3_000_000)));
        }
      }
      try (var files = Files.walk(path)) {
        List<String> strange =
            files.map(each -> each.getFileName().toString()).filter(name -> name.length() != 64 && name.length() != 2).toList();
        assertEquals(List.of("killed"), strange);
      }
    }
  }

  @Test
  void pinsStay() {
    MemoryBlockStore store = new MemoryBlockStore(500, Eviction.S3_FIFO);
    List<KvBlock> pinned = blocks(1, 3, 100);
    store.pin(names(pinned));
    store.put(pinned);
    for (int i = 2; i < 10; i++) {
      store.put(blocks(i, 5, 100));
    }
    assertEquals(3, store.longest(names(pinned)).size());
    store.unpin(names(pinned));
    for (int i = 2; i < 10; i++) {
      store.put(blocks(i, 5, 100));
    }
    assertEquals(0, store.longest(names(pinned)).size());
    assertEquals(500, store.holdings().bytes());
  }

  @Test
  void blocksAreHeldInTheMemoryOfTheStore() {
    List<ByteBuffer> held = new ArrayList<>();
    AtomicBoolean closed = new AtomicBoolean();
    BlockMemory memory =
        new BlockMemory() {
          @Override
          public ByteBuffer hold(ByteBuffer block) {
            held.add(ByteBuffer.allocateDirect(block.remaining()).put(block.duplicate()).flip());
            return held.get(held.size() - 1);
          }

          @Override
          public void close() {
            closed.set(true);
          }
        };
    MemoryBlockStore store = new MemoryBlockStore(500, Eviction.LRU, Duration.ZERO, System::nanoTime, memory);
    ChainHash name = ChainHash.of(new byte[32]);
    ByteBuffer direct = ByteBuffer.allocateDirect(100).put(5, (byte) 9);
    assertEquals(1, store.put(List.of(new KvBlock(name, direct))));
    assertEquals(1, store.put(List.of(new KvBlock(name, direct))));
    assertEquals(0, store.put(List.of(new KvBlock(ChainHash.of(name(1)), ByteBuffer.allocate(501)))));
    assertEquals(1, held.size(), "what is there, or cannot be, is not held");
    held.get(0).put(5, (byte) 10);
    assertEquals(10, store.get(name).get(5), "its own bytes");
    store.close();
    assertTrue(closed.get());
  }

  private static byte[] name(int first) {
    byte[] bytes = new byte[32];
    bytes[0] = (byte) first;
    return bytes;
  }
}
