package dev.kvasir.prefix;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Testing;
import dev.kvasir.file.ChainHash;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.Uniform;
import dev.kvasir.prefix.policy.Eviction;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import javax.crypto.spec.SecretKeySpec;
import jdk.jfr.Recording;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

class PrefixCacheTest {

  private static final int[] TOKENS = IntStream.range(0, 700).toArray();
  private static final int KNOWN = 4 + 5 * 128;

  @TempDir Path folder;

  private static KvCache cache(KvMethod method) {
    return Testing.cache(Testing.small()).method(method).build();
  }

  private static void publish(PrefixCache prefixes, KvCache cache, PrefixRequest request) {
    try (KvSequence sequence = cache.newSequence()) {
      FakeModel.read(sequence, request.tokens(), 0, request.tokens().length);
      prefixes.publish(sequence, request).join();
    }
  }

  private static Map<Tier, Integer> tiersOf(PrefixCache prefixes, PrefixRequest request) {
    try (PrefixMatch match = prefixes.lookup(request)) {
      return match.tokensByTier();
    }
  }

  @Test
  void everyTierGivesTheSame() throws Exception {
    for (KvMethod method : List.of(new HalfPrecision(), Uniform.bits(2), Uniform.bits(3).window(150), PatternKv.bits(2))) {
      Path files = folder.resolve(method.name() + method.window());
      FaultyStore store = new FaultyStore(1);
      PrefixRequest request = PrefixRequest.of(TOKENS);
      float[] expected;
      int known;
      try (KvCache cache = cache(method);
          PrefixCache prefixes = PrefixCache.builder(cache).folder(files, 1 << 30).remote(store).build();
          KvSequence sequence = cache.newSequence()) {
        FakeModel.read(sequence, TOKENS, 0, 700);
        assertEquals(Map.of(), tiersOf(prefixes, request));
        assertTrue(prefixes.publish(sequence, request).join() > 0);
        assertEquals(0, prefixes.publish(sequence, request).join(), "all of it is there already");
        try (PrefixMatch match = prefixes.lookup(request)) {
          known = match.reusedTokens();
          assertEquals(method.sinks() + (700 - method.sinks() - method.window()) / 128 * 128, known, method.toString());
          assertEquals(Map.of(Tier.POOL, known), match.tokensByTier());
          expected = FakeModel.attend(match.sequence());
        }
        prefixes.release(Long.MAX_VALUE);
        try (PrefixMatch match = prefixes.lookup(request)) {
          assertEquals(Map.of(Tier.HOST, known), match.tokensByTier());
          assertArrayEquals(expected, FakeModel.attend(match.sequence()), method.toString());
        }
        assertEquals(Map.of(Tier.POOL, known), tiersOf(prefixes, request));
      }
      try (KvCache cache = cache(method);
          PrefixCache prefixes = PrefixCache.builder(cache).folder(files, 1 << 30).remote(store).build();
          PrefixMatch match = prefixes.lookup(request)) {
        assertEquals(Map.of(Tier.FOLDER, known), match.tokensByTier());
        assertArrayEquals(expected, FakeModel.attend(match.sequence()), method.toString());
      }
      try (KvCache cache = cache(method);
          PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build();
          PrefixMatch match = prefixes.lookup(request)) {
        assertEquals(Map.of(Tier.REMOTE, known), match.tokensByTier());
        assertArrayEquals(expected, FakeModel.attend(match.sequence()), method.toString());
        FakeModel.read(match.sequence(), TOKENS, known, 700);
        assertEquals(700, match.sequence().length());
      }
    }
  }

  /** Blocks come to tiers some at a time: the later ones must not push out those that they need. */
  @Test
  void ofTextsThatAreLongerThanATierTheBeginningIsFound() throws Exception {
    PrefixRequest request = PrefixRequest.of(IntStream.range(0, 4 + 40 * 128 + 130).toArray());
    KvMethod method = Uniform.bits(2);
    long block;
    try (KvCache cache = cache(method);
        PrefixCache prefixes = PrefixCache.builder(cache).build()) {
      publish(prefixes, cache, request);
      TierStats host = prefixes.stats().tiers().get(Tier.HOST);
      block = host.holdings().bytes() / host.holdings().blocks();
    }
    for (Eviction policy : Eviction.values()) {
      for (Tier tier : List.of(Tier.HOST, Tier.FOLDER)) {
        long host = tier == Tier.HOST ? 20 * block : 0;
        long files = tier == Tier.FOLDER ? 20 * block : 0;
        try (KvCache cache = cache(method);
            PrefixCache prefixes =
                PrefixCache.builder(cache)
                    .policy(policy)
                    .poolBytes(0)
                    .hostBytes(host)
                    .folder(folder.resolve("" + policy + tier), files)
                    .build()) {
          publish(prefixes, cache, request);
          int found = tiersOf(prefixes, request).getOrDefault(tier, 0);
          assertTrue(found >= 19 * 128, policy + " of " + tier + ": " + found);
        }
      }
    }
  }

  @Test
  void whatIsLiveIsGoneOnBehind() throws Exception {
    int[] shorter = IntStream.range(0, 4 + 2 * 128 + 1).toArray();
    for (KvMethod method : List.of(new HalfPrecision(), Uniform.bits(2), PatternKv.bits(2))) {
      FaultyStore store = new FaultyStore(1);
      PrefixRequest request = PrefixRequest.of(TOKENS);
      float[] expected;
      try (KvCache cache = cache(method);
          PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
        publish(prefixes, cache, request);
        try (PrefixMatch match = prefixes.lookup(request)) {
          expected = FakeModel.attend(match.sequence());
        }
      }
      int first = method.sinks() + 256;
      int more = (700 - method.sinks() - method.window()) / 128 - 2;
      try (KvCache cache = cache(method);
          PrefixCache prefixes = PrefixCache.builder(cache).hostBytes(0).remote(store).build()) {
        assertEquals(Map.of(Tier.REMOTE, first), tiersOf(prefixes, PrefixRequest.of(shorter)));
        long pages = cache.stats().layers().get(0).pages();
        store.delivered.set(0);
        try (PrefixMatch match = prefixes.lookup(request)) {
          assertEquals(Map.of(Tier.POOL, first, Tier.REMOTE, more * 128), match.tokensByTier(), method.toString());
          assertEquals(more, store.delivered.get(), "only what is missing comes");
          assertEquals(pages + more, cache.stats().layers().get(0).pages(), "pages are there once");
          assertArrayEquals(expected, FakeModel.attend(match.sequence()), method.toString());
          FakeModel.read(match.sequence(), TOKENS, match.reusedTokens(), 700);
        }
        assertEquals(Map.of(Tier.POOL, first + more * 128), tiersOf(prefixes, request));
      }
    }
  }

  @Test
  void whatIsBelowMayBeOfOtherPatternsThanWhatIsLive() throws Exception {
    FaultyStore store = new FaultyStore(1);
    PrefixRequest request = PrefixRequest.of(TOKENS);
    try (KvCache cache = cache(PatternKv.bits(2))) {
      try (PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
        publish(prefixes, cache, request);
      }
      try (PrefixCache prefixes = PrefixCache.builder(cache).hostBytes(0).remote(store).build();
          KvSequence other = cache.newSequence()) {
        FakeModel.read(other, TOKENS, 0, 300); // patterns come from what is read at once
        store.down = true;
        prefixes.publish(other, request).join();
        store.down = false;
        int all = 4 + (700 - 4 - PatternKv.bits(2).window()) / 128 * 128;
        assertEquals(Map.of(Tier.REMOTE, all), tiersOf(prefixes, request), "all of it comes from below");
        assertEquals(0, prefixes.stats().tiers().get(Tier.REMOTE).rejected(), "nothing is wrong with it");
      }
    }
  }

  /** Pages are nobody's until the garbage collector comes by, which sees none of their bytes. */
  @Test
  @Timeout(60)
  void aMatchThatNobodyWaitsForIsClosed() throws Exception {
    CountDownLatch looking = new CountDownLatch(1);
    CountDownLatch givenUp = new CountDownLatch(1);
    AtomicBoolean slow = new AtomicBoolean();
    Executor executor = work -> new Thread(work).start();
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes =
            PrefixCache.builder(cache)
                .executor(executor)
                .timeToLive(Duration.ofDays(1))
                .clock(
                    () -> {
                      if (slow.get()) {
                        looking.countDown();
                        await(givenUp);
                      }
                      return 0;
                    })
                .build()) {
      publish(prefixes, cache, PrefixRequest.of(TOKENS));
      assertEquals(1, cache.stats().sequences());
      slow.set(true);
      CompletableFuture<PrefixMatch> match = prefixes.lookupAsync(PrefixRequest.of(TOKENS));
      looking.await();
      assertTrue(match.cancel(false));
      slow.set(false);
      givenUp.countDown();
      while (prefixes.stats().lookups() == 0 || cache.stats().sequences() > 1) {
        Thread.sleep(1);
      }
    }
  }

  private static void await(CountDownLatch latch) {
    try {
      latch.await();
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  @Test
  void aLoadThatFailsGivesBackWhatWasFound() throws Exception {
    FaultyStore store = new FaultyStore(1);
    AtomicBoolean refuse = new AtomicBoolean();
    Executor executor =
        work -> {
          if (refuse.get()) {
            throw new IllegalStateException("no thread");
          }
          work.run();
        };
    try (KvCache cache = cache(Uniform.bits(2))) {
      try (PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
        publish(prefixes, cache, PrefixRequest.of(TOKENS));
      }
      try (PrefixCache prefixes = PrefixCache.builder(cache).executor(executor).remote(store).build()) {
        tiersOf(prefixes, PrefixRequest.of(IntStream.range(0, 4 + 2 * 128 + 1).toArray()));
        assertEquals(1, cache.stats().sequences());
        refuse.set(true);
        assertThrows(IllegalStateException.class, () -> prefixes.lookup(PrefixRequest.of(TOKENS)));
        assertEquals(1, cache.stats().sequences(), "the one that the pool keeps");
        refuse.set(false);
        assertEquals(Map.of(Tier.POOL, KNOWN), tiersOf(prefixes, PrefixRequest.of(TOKENS)));
      }
    }
  }

  /** What waits for a thread when all is closed: nobody is left waiting, and sequences are given back. */
  @Test
  @Timeout(60)
  void whatHasNotBegunAtTheEndIsCancelled() throws Exception {
    CountDownLatch begun = new CountDownLatch(2);
    CountDownLatch answer = new CountDownLatch(1);
    FaultyStore store = new FaultyStore(1);
    store.beforeAsking =
        () -> {
          begun.countDown();
          while (true) {
            try {
              answer.await();
              return;
            } catch (InterruptedException e) {
              // a server does not hear of it either
            }
          }
        };
    try (KvCache cache = cache(Uniform.bits(2));
        KvSequence sequence = cache.newSequence()) {
      PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build();
      FakeModel.read(sequence, TOKENS, 0, 700);
      List<CompletableFuture<Integer>> published = new ArrayList<>();
      for (int i = 0; i < 3; i++) { // of two threads
        published.add(prefixes.publish(sequence, PrefixRequest.of(TOKENS)));
      }
      begun.await();
      CompletableFuture<PrefixMatch> match = prefixes.lookupAsync(PrefixRequest.of(TOKENS));
      Thread.currentThread().interrupt(); // who closes it does not wait
      prefixes.close();
      assertTrue(Thread.interrupted());
      assertThrows(CancellationException.class, () -> published.get(2).get(1, TimeUnit.SECONDS));
      assertThrows(CancellationException.class, () -> match.get(1, TimeUnit.SECONDS));
      assertEquals(1, prefixes.stats().dropped());
      answer.countDown();
      for (int i = 0; i < 2; i++) {
        published.get(i).handle((count, failure) -> 0).join();
      }
      assertEquals(1, cache.stats().sequences(), "the one that was published");
    }
  }

  @Test
  void aTokenIsLeftForTheModel() throws Exception {
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes = PrefixCache.builder(cache).build()) {
      publish(prefixes, cache, PrefixRequest.of(TOKENS));
      int[] exactly = IntStream.range(0, 4 + 256).toArray();
      assertEquals(Map.of(Tier.POOL, 4 + 128), tiersOf(prefixes, PrefixRequest.of(exactly)));
      assertEquals(Map.of(), tiersOf(prefixes, PrefixRequest.of()));
      assertEquals(Map.of(), tiersOf(prefixes, PrefixRequest.of(1, 2, 3)));
    }
  }

  @Test
  void tenantsShareWhatIsEverybodysAndNothingElse() throws Exception {
    FaultyStore store = new FaultyStore(1);
    Tenant ann = Tenant.of("ann", "x".getBytes(StandardCharsets.UTF_8));
    Tenant bob = Tenant.of("bob", "x".getBytes(StandardCharsets.UTF_8));
    PrefixRequest anns = PrefixRequest.of(TOKENS).tenant(ann).shared(4 + 256 + 100);
    PrefixRequest bobs = PrefixRequest.of(TOKENS).tenant(bob).shared(4 + 256 + 100);
    for (boolean pool : new boolean[] {true, false}) {
      try (KvCache cache = cache(Uniform.bits(2));
          PrefixCache prefixes = PrefixCache.builder(cache).poolBytes(pool ? 1 << 30 : 0).remote(store).build()) {
        publish(prefixes, cache, anns);
        assertEquals(KNOWN, prefixes.lookup(anns).reusedTokens());
        assertEquals(4 + 256, prefixes.lookup(bobs).reusedTokens());
        assertEquals(4 + 256, prefixes.lookup(PrefixRequest.of(TOKENS)).reusedTokens());
        assertEquals(0, prefixes.lookup(PrefixRequest.of(TOKENS).tenant(bob)).reusedTokens());
        Tenant impostor = Tenant.of("ann", new byte[0]);
        assertEquals(4 + 256, prefixes.lookup(PrefixRequest.of(TOKENS).tenant(impostor).shared(300)).reusedTokens());
      }
    }
  }

  @Test
  void aPublicPrefixIsHeldOnce() throws Exception {
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes = PrefixCache.builder(cache).build()) {
      int[] system = IntStream.range(0, 4 + 8 * 128).toArray();
      publish(prefixes, cache, PrefixRequest.of(system));
      long once = cache.stats().bytes();
      long hostOnce = prefixes.stats().tiers().get(Tier.HOST).holdings().bytes();
      for (int i = 0; i < 256; i++) {
        int[] tokens = IntStream.range(0, system.length + 140).toArray();
        tokens[system.length] = 5000 + i;
        PrefixRequest request =
            PrefixRequest.of(tokens).tenant(Tenant.of("tenant " + i, new byte[0])).shared(system.length);
        try (PrefixMatch match = prefixes.lookup(request)) {
          assertEquals(system.length, match.reusedTokens());
          FakeModel.read(match.sequence(), tokens, match.reusedTokens(), tokens.length);
          prefixes.publish(match.sequence(), request).join();
        }
      }
      // Each tenant adds a page of its own, and the sinks of a sequence; the eight public ones are there once.
      assertTrue(cache.stats().bytes() < once + 256 * (once / 8 + 2048), () -> once + " became " + cache.stats().bytes());
      assertTrue(prefixes.stats().tiers().get(Tier.HOST).holdings().bytes() <= hostOnce + 256 * (hostOnce / 8));
      assertEquals(256 + 8, prefixes.stats().tiers().get(Tier.POOL).holdings().blocks());
    }
  }

  /** Many times, since what it is about are threads that stop between any two lines. */
  @RepeatedTest(20)
  void manyRequestsLoadOnce() throws Exception {
    FaultyStore store = new FaultyStore(1);
    ExecutorService threads = Executors.newFixedThreadPool(8);
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
      publish(prefixes, cache, PrefixRequest.of(TOKENS));
    }
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes = PrefixCache.builder(cache).hostBytes(0).remote(store).build()) {
      List<CompletableFuture<PrefixMatch>> all = new ArrayList<>();
      for (int i = 0; i < 32; i++) {
        int[] tokens = IntStream.range(0, 700).map(t -> t < 690 ? t : -t).toArray();
        tokens[695] = i;
        all.add(CompletableFuture.supplyAsync(() -> prefixes.lookup(PrefixRequest.of(tokens)), threads));
      }
      for (CompletableFuture<PrefixMatch> match : all) {
        assertEquals(KNOWN, match.join().reusedTokens());
        match.join().close();
      }
      assertEquals(5, store.delivered.get());
    } finally {
      threads.shutdown();
    }
  }

  @Test
  void aDamagedBlockEndsThePrefixAndIsReplaced() throws Exception {
    FaultyStore store = new FaultyStore(1);
    PrefixRequest request = PrefixRequest.of(TOKENS);
    try (KvCache cache = cache(Uniform.bits(2))) {
      try (PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
        publish(prefixes, cache, request);
      }
      List<ChainHash> names = cache.chain(TOKENS, new byte[0]);
      ByteBuffer third = store.stored(names.get(3));
      int middle = third.limit() / 2;
      third.put(middle, (byte) (third.get(middle) ^ 1));
      try (PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
        assertEquals(Map.of(Tier.REMOTE, 4 + 3 * 128), tiersOf(prefixes, request));
        assertEquals(1, prefixes.stats().tiers().get(Tier.REMOTE).rejected());
        publish(prefixes, cache, request);
      }
      try (PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
        assertEquals(Map.of(Tier.REMOTE, KNOWN), tiersOf(prefixes, request));
      }
    }
  }

  @Test
  void anotherPublishersPatternsAreNotMixedIn() throws Exception {
    FaultyStore store = new FaultyStore(1);
    PrefixRequest request = PrefixRequest.of(TOKENS);
    try (KvCache cache = cache(PatternKv.bits(2))) {
      try (PrefixCache prefixes = PrefixCache.builder(cache).poolBytes(0).hostBytes(0).remote(store).build();
          KvSequence one = cache.newSequence();
          KvSequence two = cache.newSequence()) {
        FakeModel.read(one, TOKENS, 0, 300); // patterns come from what is read at once
        prefixes.publish(one, request).join();
        FakeModel.read(two, TOKENS, 0, 700);
        prefixes.publish(two, request).join();
      }
      try (PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
        assertEquals(Map.of(Tier.REMOTE, 4 + 256), tiersOf(prefixes, request));
        try (PrefixMatch match = prefixes.lookup(request)) {
          FakeModel.read(match.sequence(), TOKENS, match.reusedTokens(), 700);
          prefixes.publish(match.sequence(), request).join();
        }
      }
      try (PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
        int reused = prefixes.lookup(request).reusedTokens();
        assertTrue(reused > 4 + 256, "what goes with the first blocks replaces what does not: " + reused);
      }
    }
  }

  @Test
  void layersThatSlideNeedTheirPages() throws Exception {
    KvGeometry geometry =
        KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(32).slidingWindow(1, 200).build();
    FaultyStore store = new FaultyStore(1);
    int[] tokens = IntStream.range(0, 4 + 12 * 128 + 1).toArray();
    int[] shorter = IntStream.range(0, 4 + 6 * 128 + 1).toArray();
    try (KvCache cache = Testing.cache(geometry).method(Uniform.bits(2)).build();
        KvCache plain = Testing.cache(geometry).method(Uniform.bits(2)).build()) {
      try (PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
        KvSequence sequence = cache.newSequence();
        for (int i = 0; i < tokens.length; i += 100) {
          FakeModel.read(sequence, tokens, i, Math.min(tokens.length, i + 100));
        }
        prefixes.publish(sequence, PrefixRequest.of(tokens)).join(); // by now early pages of layer 1 are gone
        sequence.close();
      }
      try (PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
        try (PrefixMatch match = prefixes.lookup(PrefixRequest.of(tokens));
            KvSequence expected = FakeModel.cut(plain, tokens, tokens.length - 1)) {
          assertEquals(Map.of(Tier.REMOTE, tokens.length - 1), match.tokensByTier());
          assertArrayEquals(FakeModel.attend(expected), FakeModel.attend(match.sequence()));
        }
        assertEquals(0, prefixes.lookup(PrefixRequest.of(shorter)).reusedTokens());
        publish(prefixes, cache, PrefixRequest.of(shorter));
        assertEquals(shorter.length - 1, prefixes.lookup(PrefixRequest.of(shorter)).reusedTokens());
      }
    }
  }

  @Test
  void whatASlidingLayerLacksIsNotPublished() throws Exception {
    KvGeometry geometry =
        KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(32).slidingWindow(1, 200).build();
    int[] tokens = IntStream.range(0, 4 + 12 * 128 + 1).toArray();
    try (KvCache cache = Testing.cache(geometry).method(Uniform.bits(2)).build();
        PrefixCache prefixes = PrefixCache.builder(cache).build()) {
      try (KvSequence sequence = cache.newSequence()) {
        for (int i = 0; i < tokens.length; i += 100) {
          FakeModel.read(sequence, tokens, i, Math.min(tokens.length, i + 100));
        }
        assertEquals(0, prefixes.publish(sequence, PrefixRequest.of(Arrays.copyOf(tokens, 700))).join());
        assertEquals(1, cache.stats().sequences());
        assertEquals(12, prefixes.publish(sequence, PrefixRequest.of(tokens)).join());
      }
      assertEquals(0, prefixes.lookup(PrefixRequest.of(Arrays.copyOf(tokens, 700))).reusedTokens());
      assertEquals(Map.of(Tier.POOL, tokens.length - 1), tiersOf(prefixes, PrefixRequest.of(tokens)));
    }
  }

  @Test
  void thePoolCountsWhatBlocksTake() throws Exception {
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes = PrefixCache.builder(cache).build()) {
      publish(prefixes, cache, PrefixRequest.of(TOKENS));
      Map<Tier, TierStats> tiers = prefixes.stats().tiers();
      assertEquals(5, tiers.get(Tier.POOL).holdings().blocks());
      assertEquals(tiers.get(Tier.HOST).holdings().bytes(), tiers.get(Tier.POOL).holdings().bytes(), 5);
    }
  }

  @Test
  void aFileThatIsNoBlockIsAMissAndGoes() throws Exception {
    PrefixRequest request = PrefixRequest.of(TOKENS);
    try (KvCache cache = cache(Uniform.bits(2))) {
      try (PrefixCache prefixes = PrefixCache.builder(cache).folder(folder, 1L << 40).build()) {
        publish(prefixes, cache, request);
      }
      String name = cache.chain(TOKENS, new byte[0]).get(2).toString();
      Path file = folder.resolve(name.substring(0, 2)).resolve(name);
      for (long size : new long[] {3L << 30, 1L << 30}) {
        Files.delete(file);
        try (FileChannel channel =
            FileChannel.open(
                file, StandardOpenOption.WRITE, StandardOpenOption.CREATE_NEW, StandardOpenOption.SPARSE)) {
          channel.write(ByteBuffer.allocate(1), size - 1);
        }
        try (PrefixCache prefixes = PrefixCache.builder(cache).folder(folder, 1L << 40).build()) {
          assertEquals(Map.of(Tier.FOLDER, 4 + 2 * 128), tiersOf(prefixes, request));
          assertEquals(0, prefixes.stats().tiers().get(Tier.FOLDER).failures());
          assertEquals(0, prefixes.stats().tiers().get(Tier.FOLDER).rejected(), "nobody reads it");
          assertFalse(Files.exists(file));
          publish(prefixes, cache, request);
        }
        try (PrefixCache prefixes = PrefixCache.builder(cache).folder(folder, 1L << 40).build()) {
          assertEquals(Map.of(Tier.FOLDER, KNOWN), tiersOf(prefixes, request));
        }
      }
    }
  }

  @Test
  void encryptedBlocksAreOfNoUseToOthers() throws Exception {
    FaultyStore store = new FaultyStore(1);
    Tenant tenant = Tenant.of("ann", new byte[] {1});
    Tenant withKey = tenant.key(new SecretKeySpec(new byte[32], "AES"));
    Tenant otherKey = tenant.key(new SecretKeySpec(new byte[16], "AES"));
    assertThrows(IllegalArgumentException.class, () -> tenant.key(new SecretKeySpec(new byte[5], "AES")));
    PrefixRequest request = PrefixRequest.of(TOKENS).tenant(withKey);
    try (KvCache cache = cache(Uniform.bits(2))) {
      try (PrefixCache prefixes = PrefixCache.builder(cache).folder(folder, 1 << 30).remote(store).build()) {
        publish(prefixes, cache, request);
      }
      try (var files = Files.walk(folder)) {
        for (Path file : files.filter(Files::isRegularFile).toList()) {
          String text = Files.readString(file, StandardCharsets.ISO_8859_1);
          assertTrue(text.startsWith("kvsealed") && !text.contains("kvimage"), file.toString());
        }
      }
      try (PrefixCache prefixes = PrefixCache.builder(cache).folder(folder, 1 << 30).build()) {
        assertEquals(Map.of(Tier.FOLDER, KNOWN), tiersOf(prefixes, request));
      }
      for (Tenant wrong : List.of(tenant, otherKey)) {
        try (PrefixCache prefixes = PrefixCache.builder(cache).remote(store).build()) {
          assertEquals(Map.of(), tiersOf(prefixes, PrefixRequest.of(TOKENS).tenant(wrong)));
        }
      }
    }
  }

  @Test
  void aDeadStoreCostsNothing() throws Exception {
    FaultyStore store = new FaultyStore(1);
    AtomicLong now = new AtomicLong();
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes = PrefixCache.builder(cache).clock(now::get).remote(store).build()) {
      publish(prefixes, cache, PrefixRequest.of(TOKENS));
      prefixes.release(Long.MAX_VALUE);
      store.down = true;
      int[] others = IntStream.range(1000, 1700).toArray();
      int before = store.gets.get();
      for (int i = 0; i < 100; i++) {
        assertEquals(0, prefixes.lookup(PrefixRequest.of(others)).reusedTokens());
      }
      assertEquals(3, store.gets.get() - before, "after three failures it is left alone");
      assertEquals(KNOWN, prefixes.lookup(PrefixRequest.of(TOKENS)).reusedTokens());
      store.down = false;
      now.addAndGet(Duration.ofSeconds(1).toNanos());
      prefixes.lookup(PrefixRequest.of(others)).close();
      prefixes.lookup(PrefixRequest.of(others)).close();
      assertEquals(5, store.gets.get() - before, "it is back");
    }
  }

  @Test
  void timeEndsThings() throws Exception {
    AtomicLong now = new AtomicLong();
    PrefixRequest request = PrefixRequest.of(TOKENS);
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes =
            PrefixCache.builder(cache).clock(now::get).timeToLive(Duration.ofMinutes(1)).build()) {
      publish(prefixes, cache, request);
      now.addAndGet(Duration.ofSeconds(59).toNanos());
      assertEquals(KNOWN, prefixes.lookup(request).reusedTokens());
      try (PrefixPin pin = prefixes.pin(request)) {
        now.addAndGet(Duration.ofHours(1).toNanos());
        assertEquals(KNOWN, prefixes.lookup(request).reusedTokens());
      }
      assertEquals(0, prefixes.lookup(request).reusedTokens());
    }
  }

  @Test
  void anExecutorWithoutThreadsKeepsNoSequence() throws Exception {
    PrefixRequest request = PrefixRequest.of(TOKENS);
    Executor threadless = task -> { throw new InternalError("no thread"); };
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes = PrefixCache.builder(cache).executor(threadless).build();
        KvSequence sequence = cache.newSequence()) {
      FakeModel.read(sequence, TOKENS, 0, TOKENS.length);
      assertThrows(InternalError.class, () -> prefixes.publish(sequence, request));
      assertEquals(2, cache.stats().sequences(), "its own and the pool's");
      assertEquals(Map.of(Tier.POOL, KNOWN), tiersOf(prefixes, request));
      assertEquals(1, prefixes.stats().dropped());
    }
  }

  @Test
  void whatIsPublishedAgainLivesAsLongAgain() throws Exception {
    AtomicLong now = new AtomicLong();
    PrefixRequest request = PrefixRequest.of(TOKENS);
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes =
            PrefixCache.builder(cache).clock(now::get).timeToLive(Duration.ofMinutes(1)).hostBytes(0).build()) {
      publish(prefixes, cache, request);
      now.addAndGet(Duration.ofSeconds(61).toNanos());
      publish(prefixes, cache, request);
      now.addAndGet(Duration.ofSeconds(59).toNanos());
      assertEquals(Map.of(Tier.POOL, KNOWN), tiersOf(prefixes, request));
    }
  }

  @Test
  void guessesAreNotPublished() throws Exception {
    KvGeometry geometry =
        KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(32).slidingWindow(400).build();
    try (KvCache cache = Testing.cache(geometry).method(Uniform.bits(2)).build();
        PrefixCache prefixes = PrefixCache.builder(cache).build();
        KvSequence sequence = cache.newSequence()) {
      FakeModel.read(sequence, TOKENS, 0, 250);
      sequence.guess();
      FakeModel.read(sequence, TOKENS, 250, 300);
      assertEquals(1, prefixes.publish(sequence, PrefixRequest.of(TOKENS)).join());
      try (PrefixMatch match = prefixes.lookup(PrefixRequest.of(TOKENS))) {
        assertEquals(Map.of(Tier.POOL, 4 + 128), match.tokensByTier());
        match.sequence().guess(); // as in any other
      }
      assertTrue(prefixes.stats().tiers().get(Tier.POOL).holdings().bytes() > 0);
      sequence.keep(0); // they are there still
      assertEquals(251, sequence.length());
    }
  }

  @Test
  void prefetchAndHintsBringThingsNear() throws Exception {
    PrefixRequest request = PrefixRequest.of(TOKENS);
    try (KvCache cache = cache(Uniform.bits(2))) {
      try (PrefixCache prefixes =
          PrefixCache.builder(cache).folder(folder, 1 << 30).deadline(Duration.ofMinutes(1)).build()) {
        publish(prefixes, cache, request);
      }
      try (PrefixCache prefixes =
          PrefixCache.builder(cache).folder(folder, 1 << 30).deadline(Duration.ofMinutes(1)).build()) {
        assertEquals(5, prefixes.prefetch(request).join());
        assertEquals(Map.of(Tier.HOST, KNOWN), tiersOf(prefixes, request));
      }
      try (PrefixCache prefixes =
          PrefixCache.builder(cache).folder(folder, 1 << 30).deadline(Duration.ofMinutes(1)).build()) {
        prefixes.expectReturn(request, Duration.ofMillis(100));
        for (int i = 0; i < 500 && prefixes.stats().tiers().get(Tier.HOST).holdings().blocks() < 5; i++) {
          Thread.sleep(10);
        }
        assertEquals(Map.of(Tier.HOST, KNOWN), tiersOf(prefixes, request));
      }
    }
  }

  @Test
  void aFullCacheGivesPrefixesUpFirst() throws Exception {
    PrefixRequest request = PrefixRequest.of(TOKENS);
    long all;
    try (KvCache cache = cache(Uniform.bits(2));
        KvSequence sequence = cache.newSequence()) {
      FakeModel.read(sequence, TOKENS, 0, 700);
      all = cache.stats().bytes();
    }
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).budgetBytes(all + all / 4).build();
        PrefixCache prefixes = PrefixCache.builder(cache).build()) {
      publish(prefixes, cache, request);
      prefixes.release(Long.MAX_VALUE);
      int[] others = IntStream.range(1000, 1700).toArray();
      publish(prefixes, cache, PrefixRequest.of(others));
      assertEquals(Map.of(Tier.HOST, KNOWN), tiersOf(prefixes, request));
      assertTrue(cache.stats().bytes() <= all + all / 4);
    }
  }

  @Test
  void lookupsAreRecordedAndCounted() throws Exception {
    Path file = folder.resolve("events.jfr");
    try (Recording recording = new Recording();
        KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes = PrefixCache.builder(cache).build()) {
      recording.enable("kvasir.PrefixLookup").withoutThreshold();
      recording.enable("kvasir.PrefixPublish").withoutThreshold();
      recording.start();
      publish(prefixes, cache, PrefixRequest.of(TOKENS));
      prefixes.lookup(PrefixRequest.of(TOKENS)).close();
      recording.stop();
      recording.dump(file);
      PrefixStats stats = prefixes.stats();
      assertEquals(1, stats.lookups());
      assertEquals(1, stats.hits());
      assertEquals(KNOWN, stats.tokensReused());
      assertEquals(5, stats.published());
      assertEquals(5, stats.tiers().get(Tier.POOL).hits());
      assertNotEquals(0, stats.tiers().get(Tier.HOST).bytesWritten());
    }
    List<RecordedEvent> events = RecordingFile.readAllEvents(file);
    RecordedEvent lookup =
        events.stream().filter(e -> e.getEventType().getName().equals("kvasir.PrefixLookup")).findAny().orElseThrow();
    assertEquals(KNOWN, lookup.getInt("pool"));
    assertEquals(700, lookup.getInt("tokens"));
    assertTrue(events.stream().anyMatch(e -> e.getEventType().getName().equals("kvasir.PrefixPublish")));
  }

  @Test
  void timesMayBeLongerThanNanosecondsCanCount() throws Exception {
    Duration longest = Duration.ofSeconds(Long.MAX_VALUE);
    PrefixRequest request = PrefixRequest.of(TOKENS);
    try (KvCache cache = cache(Uniform.bits(2));
        PrefixCache prefixes =
            PrefixCache.builder(cache).deadline(longest).timeToLive(longest).folder(folder, 1 << 30).build()) {
      publish(prefixes, cache, request);
      assertEquals(Map.of(Tier.POOL, KNOWN), tiersOf(prefixes, request));
      prefixes.release(Long.MAX_VALUE);
      assertEquals(Map.of(Tier.HOST, KNOWN), tiersOf(prefixes, request));
      assertEquals(5, prefixes.prefetch(request).join());
      prefixes.expectReturn(request, longest);
      prefixes.expectReturn(request, longest.negated());
    }
  }

  @Test
  void storesThatCountWronglyDoNotKeepAPublicationFromOthers() throws Exception {
    PrefixRequest request = PrefixRequest.of(TOKENS);
    for (Integer count : new Integer[] {null, -5, Integer.MIN_VALUE, Integer.MAX_VALUE}) {
      try (KvCache cache = cache(Uniform.bits(2));
          PrefixCache prefixes = PrefixCache.builder(cache).remote(new MiscountingStore(count)).build()) {
        publish(prefixes, cache, request);
        prefixes.release(Long.MAX_VALUE);
        assertEquals(Map.of(Tier.HOST, KNOWN), tiersOf(prefixes, request), () -> "a count of " + count);
      }
    }
  }

  @Test
  void whatIsClosedOrForeignIsRefused() throws Exception {
    try (KvCache cache = cache(Uniform.bits(2));
        KvCache other = cache(Uniform.bits(2));
        KvSequence foreign = other.newSequence()) {
      PrefixCache prefixes = PrefixCache.builder(cache).build();
      assertThrows(IllegalArgumentException.class, () -> prefixes.publish(foreign, PrefixRequest.of(1)));
      assertThrows(IllegalArgumentException.class, () -> PrefixRequest.of(1).shared(2));
      assertThrows(IllegalArgumentException.class, () -> PrefixCache.builder(cache).hostBytes(-1));
      assertThrows(IllegalArgumentException.class, () -> PrefixCache.builder(cache).deadline(Duration.ZERO));
      prefixes.close();
      prefixes.close();
      assertThrows(IllegalStateException.class, () -> prefixes.lookup(PrefixRequest.of(1)));
      assertThrows(IllegalStateException.class, () -> prefixes.publish(foreign, PrefixRequest.of(1)));
    }
  }
}
