package dev.kvasir.file;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Testing;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvFileException;
import dev.kvasir.error.KvFileException.Reason;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ByteChannel;
import java.nio.channels.Channels;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Sequences in files: what comes back is what was saved, to the bit, or a typed error. */
@Tag("jnicheck")
class SaveTest {

  private static final List<KvMethod> METHODS =
      List.of(new HalfPrecision(), Uniform.bits(2), PatternKv.bits(2), PmKvq.floor(2), MixKvq.budget(2.7));

  @TempDir Path folder;

  private static KvCache cache(KvMethod method) {
    return Testing.cache(Testing.small()).method(method).build();
  }

  /** Tokens of a stream that is the same for all. */
  private static void grow(KvSequence sequence, long seed, int tokens) {
    Random random = new Random(seed);
    for (int layer = 0; layer < 2; layer++) {
      sequence.append(layer, Testing.gaussian(random, tokens * 64), Testing.gaussian(random, tokens * 64), tokens);
    }
  }

  private static float[] attend(KvSequence sequence, long seed) {
    float[] all = new float[2 * 128];
    for (int layer = 0; layer < 2; layer++) {
      float[] output = new float[128];
      sequence.attend(layer, Testing.gaussian(new Random(seed + layer), 128), output);
      System.arraycopy(output, 0, all, 128 * layer, 128);
    }
    return all;
  }

  private static KvSequence grown(KvCache cache, int tokens) {
    KvSequence sequence = cache.newSequence();
    grow(sequence, 1, Math.min(tokens, 200));
    for (int t = 200; t < tokens; t += 50) {
      attend(sequence, t);
      grow(sequence, t, Math.min(50, tokens - t));
    }
    return sequence;
  }

  private static Reason reasonOf(org.junit.jupiter.api.function.Executable call) {
    return assertThrows(KvFileException.class, call).reason();
  }

  @Test
  void comesBackAsItWas() throws IOException {
    for (KvMethod method : METHODS) {
      for (int tokens : new int[] {1, 4, 100, 131, 132, 133, 260, 700}) {
        Path path = folder.resolve("sequence.kv");
        try (KvCache cache = cache(method);
            KvCache other = cache(method);
            KvSequence sequence = grown(cache, tokens)) {
          sequence.save(path);
          try (KvSequence again = other.restore(path)) {
            assertEquals(sequence.length(), again.length());
            assertArrayEquals(attend(sequence, 5), attend(again, 5), method + " " + tokens);
            grow(sequence, 9, 150);
            grow(again, 9, 150);
            assertArrayEquals(attend(sequence, 6), attend(again, 6), method + " " + tokens);
          }
          FileInfo info = KvFile.verify(path);
          assertEquals(tokens, info.tokens());
          assertEquals(cache.description(), info.description());
          assertEquals(Files.size(path), info.bytes());
          assertEquals(other.stats().sequences(), 0);
        }
      }
    }
    try (var files = Files.list(folder)) {
      assertEquals(1, files.count(), "nothing is left beside the file");
    }
  }

  @Test
  void goesThroughChannelsAndStopsAtItsEnd() throws IOException {
    try (KvCache cache = cache(PatternKv.bits(2));
        KvSequence sequence = grown(cache, 500)) {
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      WritableByteChannel out = Channels.newChannel(bytes);
      sequence.save(out, FileOptions.defaults());
      sequence.save(out, FileOptions.defaults());
      out.write(ByteBuffer.wrap("more".getBytes()));
      ByteArrayInputStream in = new ByteArrayInputStream(bytes.toByteArray());
      var channel = Channels.newChannel(in);
      for (int i = 0; i < 2; i++) {
        try (KvSequence again = cache.restore(channel, FileOptions.defaults())) {
          assertArrayEquals(attend(sequence, 5), attend(again, 5));
        }
      }
      assertEquals(4, in.available());
    }
  }

  @Test
  void tokensAreSavedWithIt() throws IOException {
    Path path = folder.resolve("a");
    int[] ids = IntStream.range(1000, 1300).toArray();
    try (KvCache cache = cache(Uniform.bits(2));
        KvSequence sequence = grown(cache, 300)) {
      sequence.save(path);
      assertEquals(0, KvFile.tokens(path).length);
      sequence.save(path, FileOptions.defaults().tokens(ids));
      assertArrayEquals(ids, KvFile.tokens(path));
      cache.restore(path).close();
      assertThrows(
          IllegalArgumentException.class,
          () -> sequence.save(path, FileOptions.defaults().tokens(new int[301])));
    }
  }

  @Test
  void isSavedWhileItGoesOn() throws Exception {
    Path path = folder.resolve("a");
    try (KvCache cache = cache(MixKvq.budget(2.7))) {
      KvSequence sequence = grown(cache, 400);
      float[] then = attend(sequence.fork(), 5);
      ConcurrentLinkedQueue<Runnable> later = new ConcurrentLinkedQueue<>();
      CompletableFuture<Void> saved = sequence.saveAsync(path, FileOptions.defaults().executor(later::add));
      grow(sequence, 3, 300);
      sequence.close();
      assertFalse(saved.isDone());
      later.remove().run();
      saved.get();
      try (KvSequence again = cache.restoreAsync(path, FileOptions.defaults()).get()) {
        assertEquals(400, again.length());
        assertArrayEquals(then, attend(again, 5));
      }
    }
  }

  @Test
  void aCacheThatIsClosedMeanwhileStaysUntilItIsSaved() throws Exception {
    Path path = folder.resolve("a");
    ConcurrentLinkedQueue<Runnable> later = new ConcurrentLinkedQueue<>();
    CompletableFuture<Void> saved;
    try (KvCache cache = cache(Uniform.bits(2));
        KvSequence sequence = grown(cache, 400)) {
      saved = sequence.saveAsync(path, FileOptions.defaults().executor(later::add));
    }
    later.remove().run();
    saved.get();
    assertEquals(400, KvFile.verify(path).tokens());
  }

  @Test
  void anExecutorThatTakesNothingFailsTheFuture() throws Exception {
    Path path = folder.resolve("a");
    try (KvCache cache = cache(Uniform.bits(2));
        KvSequence sequence = grown(cache, 400)) {
      Executor full = task -> { throw new RejectedExecutionException(); };
      Executor threadless = task -> { throw new InternalError("no thread"); };
      for (Executor none : List.of(full, threadless)) {
        FileOptions refused = FileOptions.defaults().executor(none);
        CompletableFuture<Void> saved = sequence.saveAsync(path, refused);
        assertThrows(ExecutionException.class, saved::get);
        CompletableFuture<KvSequence> restored = cache.restoreAsync(path, refused);
        assertThrows(ExecutionException.class, restored::get);
      }
    }
  }

  @Test
  void progressIsToldAndCancellationLeavesNothing() throws Exception {
    Path path = folder.resolve("a");
    try (KvCache cache = cache(Uniform.bits(2));
        KvSequence sequence = grown(cache, 700)) {
      List<Long> moved = new ArrayList<>();
      AtomicLong total = new AtomicLong();
      FileOptions told =
          FileOptions.defaults()
              .progress(
                  (bytes, all) -> {
                    moved.add(bytes);
                    total.set(all);
                  });
      sequence.save(path, told);
      assertTrue(moved.size() >= 7, moved.toString());
      assertEquals(moved.stream().sorted().toList(), moved);
      assertTrue(total.get() >= moved.get(moved.size() - 1));
      byte[] before = Files.readAllBytes(path);
      AtomicLong asked = new AtomicLong();
      FileOptions cancelled = FileOptions.defaults().cancelWhen(() -> asked.incrementAndGet() > 3);
      assertEquals(Reason.CANCELLED, reasonOf(() -> sequence.save(path, cancelled)));
      assertArrayEquals(before, Files.readAllBytes(path));
      asked.set(0);
      long held = cache.stats().bytes();
      assertEquals(Reason.CANCELLED, reasonOf(() -> cache.restore(path, cancelled)));
      assertEquals(held, cache.stats().bytes());
      ConcurrentLinkedQueue<Runnable> later = new ConcurrentLinkedQueue<>();
      CompletableFuture<KvSequence> future = cache.restoreAsync(path, FileOptions.defaults().executor(later::add));
      future.cancel(true);
      later.remove().run();
      assertEquals(held, cache.stats().bytes());
      try (var files = Files.list(folder)) {
        assertEquals(1, files.count());
      }
    }
  }

  @Test
  void anotherKindOfCacheIsNamed() throws IOException {
    Path path = folder.resolve("a");
    ModelFingerprint one = ModelFingerprint.of(new byte[] {1});
    ModelFingerprint two = ModelFingerprint.of(new byte[] {2});
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).model(one).build();
        KvSequence sequence = grown(cache, 300)) {
      sequence.save(path);
      try (KvCache same = Testing.cache(Testing.small()).method(Uniform.bits(2)).model(one).build()) {
        same.restore(path).close();
      }
      assertMismatch(path, Uniform.bits(2), two, one.toString(), two.toString());
      assertMismatch(path, Uniform.bits(3), one, "bits 2", "bits 3", "layers 0 to 1");
      assertMismatch(path, Uniform.bits(2).window(50), one, "'window 0' in the file, 'window 50' here");
    }
  }

  private static void assertMismatch(Path path, KvMethod method, ModelFingerprint model, Object... names) {
    try (KvCache other = Testing.cache(Testing.small()).method(method).model(model).build()) {
      KvFileException e = assertThrows(KvFileException.class, () -> other.restore(path));
      assertEquals(Reason.MISMATCH, e.reason());
      Testing.assertNames(e, names);
    }
  }

  @Test
  void everyByteOfAFileMatters() throws IOException {
    Path path = folder.resolve("a");
    try (KvCache cache = cache(PatternKv.bits(2));
        KvSequence sequence = grown(cache, 300)) {
      sequence.save(path, FileOptions.defaults().tokens(IntStream.range(0, 300).toArray()));
      byte[] good = Files.readAllBytes(path);
      long held = cache.stats().bytes();
      Random random = new Random(4);
      for (int i = 0; i < 300; i++) {
        byte[] bad = good.clone();
        int at = random.nextInt(good.length);
        bad[at] ^= (byte) (1 << random.nextInt(8));
        int cut = random.nextInt(good.length);
        Files.write(path, bad);
        assertThrows(KvFileException.class, () -> KvFile.verify(path), () -> "byte " + at);
        assertThrows(KvFileException.class, () -> cache.restore(path), () -> "byte " + at);
        Files.write(path, Arrays.copyOf(good, cut));
        assertEquals(Reason.TRUNCATED, reasonOf(() -> cache.restore(path)), () -> "cut at " + cut);
      }
      Files.write(path, Arrays.copyOf(good, good.length + 1));
      assertEquals(Reason.INVALID, reasonOf(() -> cache.restore(path)));
      Files.writeString(path, "a file of another kind, which is long enough to hold a head".repeat(10));
      assertEquals(Reason.FOREIGN, reasonOf(() -> cache.restore(path)));
      assertThrows(IOException.class, () -> cache.restore(folder.resolve("none")));
      assertThrows(IOException.class, () -> cache.restore(folder));
      assertEquals(held, cache.stats().bytes());
      assertEquals(1, cache.stats().sequences());
    }
  }

  @Test
  void aBudgetThatDoesNotHoldItRefusesIt() throws IOException {
    Path path = folder.resolve("a");
    try (KvCache cache = cache(Uniform.bits(2));
        KvSequence sequence = grown(cache, 700)) {
      sequence.save(path);
      try (KvCache small =
          Testing.cache(Testing.small()).method(Uniform.bits(2)).budgetBytes(cache.stats().bytes() - 1).build()) {
        assertThrows(BudgetExceededException.class, () -> small.restore(path));
        assertEquals(0, small.stats().bytes());
      }
    }
  }

  @Test
  void blocksMakeAPrefix() {
    byte[] salt = {1, 2, 3};
    int[] ids = IntStream.range(0, 600).toArray();
    for (KvMethod method : METHODS) {
      try (KvCache cache = cache(method);
          KvCache other = cache(method);
          KvSequence sequence = grown(cache, 600)) {
        List<KvBlock> blocks = sequence.exportBlocks(ids, salt, 0, 100);
        List<ChainHash> names = cache.chain(ids, salt);
        assertTrue(blocks.size() >= 3 && blocks.size() <= names.size());
        assertEquals(names.subList(0, blocks.size()), blocks.stream().map(KvBlock::hash).toList());
        for (int count = 1; count <= blocks.size(); count++) {
          try (KvSequence prefix = sequence.fork();
              KvSequence attached = other.attachBlocks(blocks.subList(0, count))) {
            prefix.truncate(method.sinks() + 128L * count);
            assertEquals(prefix.length(), attached.length());
            assertArrayEquals(attend(prefix, 5), attend(attached, 5), method.toString());
          }
        }
        // From memory of another kind, and by parts.
        List<KvBlock> copies = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
          KvBlock block = sequence.exportBlocks(ids, salt, i, 1).get(0);
          byte[] array = new byte[block.bytes().remaining()];
          block.bytes().get(0, array);
          copies.add(new KvBlock(ChainHash.of(block.hash().bytes()), ByteBuffer.wrap(array)));
        }
        other.attachBlocks(copies).close();
        assertEquals(Reason.ORDER, reasonOf(() -> other.attachBlocks(List.of(copies.get(1)))));
        KvBlock renamed = new KvBlock(names.get(1), copies.get(0).bytes());
        assertEquals(Reason.ORDER, reasonOf(() -> other.attachBlocks(List.of(renamed))));
        copies.get(0).bytes().put(500, (byte) (copies.get(0).bytes().get(500) ^ 1));
        assertEquals(Reason.CHECKSUM, reasonOf(() -> other.attachBlocks(copies)));
        assertEquals(0, other.stats().bytes());
      }
    }
  }

  @Test
  void blocksAreWholeWhateverShrinksMeanwhile() throws Exception {
    KvMethod method = PmKvq.floor(2);
    int[] ids = IntStream.range(0, 2600).toArray();
    long budget;
    try (KvCache probe = cache(method);
        KvSequence sequence = grown(probe, 2600)) {
      budget = probe.stats().bytes() + 10_000;
    }
    for (int round = 0; round < 5; round++) {
      try (KvCache cache = Testing.cache(Testing.small()).method(method).budgetBytes(budget).build();
          KvCache other = cache(method);
          KvSequence sequence = grown(cache, 2600)) {
        CompletableFuture<Void> filled =
            CompletableFuture.runAsync(
                () -> {
                  try (KvSequence filler = cache.newSequence()) {
                    while (true) {
                      grow(filler, 7, 10);
                    }
                  } catch (BudgetExceededException e) {
                    return; // all pages are as narrow as they get
                  }
                });
        do {
          other.attachBlocks(sequence.exportBlocks(ids, new byte[0], 0, 100)).close();
        } while (!filled.isDone());
        filled.get();
      }
    }
  }

  @Test
  void callbacksMayThrowAnything() throws Exception {
    FileOptions options = FileOptions.defaults().progress((done, all) -> SaveTest.<RuntimeException>raise());
    try (KvCache cache = cache(Uniform.bits(2));
        KvSequence sequence = grown(cache, 300)) {
      CompletableFuture<?> saved = sequence.saveAsync(folder.resolve("sequence.kv"), options);
      ExecutionException thrown = assertThrows(ExecutionException.class, () -> saved.get(1, TimeUnit.MINUTES));
      assertInstanceOf(InterruptedException.class, thrown.getCause());
    }
    try (Stream<Path> left = Files.list(folder)) {
      assertEquals(List.of(), left.toList());
    }
  }

  @SuppressWarnings("unchecked") // as what knows no checked exceptions throws them
  private static <T extends Throwable> void raise() throws T {
    throw (T) new InterruptedException("thrown");
  }

  @Test
  void namesGoByEverythingBefore() {
    int[] ids = IntStream.range(0, 600).toArray();
    int[] changed = ids.clone();
    changed[140] = 7;
    try (KvCache cache = cache(Uniform.bits(2));
        KvCache other = cache(Uniform.bits(3))) {
      List<ChainHash> names = cache.chain(ids, new byte[0]);
      assertEquals((600 - cache.method().sinks()) / 128, names.size());
      assertEquals(names, cache.chain(Arrays.copyOf(ids, 599), new byte[0]));
      List<ChainHash> later = cache.chain(changed, new byte[0]);
      assertEquals(names.get(0), later.get(0));
      assertNotEquals(names.get(1), later.get(1));
      assertNotEquals(names.get(3), later.get(3));
      assertNotEquals(names.get(0), cache.chain(ids, new byte[1]).get(0));
      assertNotEquals(names.get(0), other.chain(ids, new byte[0]).get(0));
    }
  }

  /** As one does that is not to block, and has nobody at its other end. */
  @Test
  @Timeout(60)
  void channelsThatMoveNothingAreRefused() throws IOException {
    ByteChannel still =
        new ByteChannel() {
          @Override
          public int read(ByteBuffer bytes) {
            return 0;
          }

          @Override
          public int write(ByteBuffer bytes) {
            return 0;
          }

          @Override
          public boolean isOpen() {
            return true;
          }

          @Override
          public void close() {}
        };
    try (KvCache cache = cache(Uniform.bits(2));
        KvSequence sequence = cache.newSequence()) {
      grow(sequence, 1, 200);
      assertThrows(IOException.class, () -> sequence.save(still, FileOptions.defaults()));
      assertThrows(IOException.class, () -> cache.restore(still, FileOptions.defaults()));
      assertEquals(1, cache.stats().sequences());
    }
  }

  @Test
  void aModelIsItsFiles() throws IOException {
    Path a = Files.writeString(folder.resolve("a"), "weights");
    Path b = Files.writeString(folder.resolve("b"), "adapter");
    assertEquals(ModelFingerprint.of(a), ModelFingerprint.of(List.of(a)));
    assertNotEquals(ModelFingerprint.of(a), ModelFingerprint.of(List.of(a, b)));
    assertNotEquals(ModelFingerprint.of(List.of(b, a)), ModelFingerprint.of(List.of(a, b)));
    ModelFingerprint before = ModelFingerprint.of(List.of(a, b));
    Files.move(a, folder.resolve("c"));
    assertEquals(before, ModelFingerprint.of(List.of(folder.resolve("c"), b)));
    assertEquals(64, before.toString().length());
  }
}
