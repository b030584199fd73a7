package dev.kvasir.runner;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.file.ModelFingerprint;
import dev.kvasir.prefix.Tenant;
import dev.kvasir.prefix.Tier;
import dev.kvasir.prefix.store.BlockStore;
import dev.kvasir.runner.Generation.End;
import dev.kvasir.runner.file.SafetensorsModel;
import dev.kvasir.runner.file.WeightFile;
import dev.kvasir.runner.file.Weights;
import dev.kvasir.runner.text.NoText;
import dev.kvasir.runner.text.Tokenizer;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Sessions and the engine that serves them, on a small random model. */
@Timeout(120)
class EngineTest {

  @TempDir static Path folder;
  private static Model model;

  @BeforeAll
  static void load() throws Exception {
    TinyModel.llama(folder, 31, dev.kvasir.tensor.TensorType.F32);
    model = Model.load(folder);
  }

  private static int[] tokens(long seed, int count) {
    return new Random(seed).ints(count, 0, 256).toArray();
  }

  /** Never ends by itself. */
  private static Generation greedy(int count) {
    return new Generation(count, Sampling.GREEDY, Set.of(), null);
  }

  private static List<Integer> alone(int[] prompt, Generation wanted) {
    try (Engine engine = Engine.builder(model).build();
        Session session = engine.newSession()) {
      session.append(prompt);
      return session.generate(wanted).join().tokens();
    }
  }

  @Test
  void manySessionsGetWhatTheyGetAlone() {
    List<Session> sessions = new ArrayList<>();
    List<CompletableFuture<Generation.Result>> results = new ArrayList<>();
    try (Engine engine = Engine.builder(model).stepTokens(160).build()) {
      for (int i = 0; i < 64; i++) {
        Session session = engine.newSession();
        session.append(tokens(i, 1 + i * 37 % 300));
        sessions.add(session);
      }
      for (int i = 0; i < 64; i++) {
        results.add(sessions.get(i).generate(greedy(5 + i * 11 % 23)));
      }
      for (int i = 0; i < 64; i++) {
        Generation.Result result = results.get(i).join();
        assertEquals(alone(tokens(i, 1 + i * 37 % 300), greedy(5 + i * 11 % 23)), result.tokens(), "session " + i);
        assertEquals(End.LENGTH, result.end());
      }
    }
  }

  @Test
  void aLongPromptDoesNotHoldUpWriters() {
    try (Engine engine = Engine.builder(model).stepTokens(128).build();
        Session writer = engine.newSession();
        Session reader = engine.newSession()) {
      AtomicInteger whileReading = new AtomicInteger();
      CountDownLatch begun = new CountDownLatch(1);
      writer.append(tokens(1, 3));
      reader.append(tokens(2, 1000));
      CompletableFuture<Generation.Result> read = new CompletableFuture<>();
      CompletableFuture<Generation.Result> written =
          writer.generate(
              greedy(200)
                  .listener(
                      (token, text) -> {
                        begun.countDown();
                        if (reader.length() == 1000) {
                          whileReading.incrementAndGet();
                        }
                      }));
      assertTrue(awaited(begun));
      reader.generate(greedy(1)).thenAccept(read::complete);
      read.join();
      written.join();
      // 1000 tokens are eight chunks, and each leaves the writer a token of its own.
      assertTrue(whileReading.get() >= 8, whileReading + " tokens were written beside the prompt");
    }
  }

  private static boolean awaited(CountDownLatch latch) {
    try {
      latch.await();
      return true;
    } catch (InterruptedException e) {
      return false;
    }
  }

  @Test
  void aTextIsAddedWholeOrNotAtAll() {
    try (Engine engine = Engine.builder(model).build();
        Session session = engine.newSession()) {
      // With the token that begins a text it is one too many.
      String tooLong = "x".repeat(model.config().maxPositions());
      assertThrows(IllegalArgumentException.class, () -> session.append(tooLong));
      assertEquals(0, session.length());
      session.append("ab");
      session.append("c");
      assertArrayEquals(new int[] {TinyModel.BOS, 'a', 'b', 'c'}, session.tokens());
    }
  }

  @Test
  void nothingIsWrittenBeyondWhatTheModelWasMadeFor() {
    int most = model.config().maxPositions();
    try (Engine engine = Engine.builder(model).build();
        Session session = engine.newSession()) {
      session.append(tokens(6, most));
      assertEquals(1, session.generate(greedy(5)).join().tokens().size()); // what follows the last, and is not read
      IllegalStateException e = assertThrows(IllegalStateException.class, () -> session.generate(greedy(1)));
      assertTrue(e.getMessage().contains(String.valueOf(most)), e.getMessage());
      session.truncate(most);
      assertEquals(1, session.generate(greedy(5)).join().tokens().size());
    }
  }

  @Test
  void aConversationGoesOnWhereItEnded() {
    int[] prompt = tokens(3, 150);
    List<Integer> whole = alone(prompt, greedy(30));
    try (Engine engine = Engine.builder(model).build();
        Session session = engine.newSession()) {
      session.append(prompt);
      List<Integer> parts = new ArrayList<>(session.generate(greedy(10)).join().tokens());
      parts.addAll(session.generate(greedy(20)).join().tokens());
      assertEquals(whole, parts);
      assertEquals(180, session.length());
      int[] all = session.tokens();
      assertArrayEquals(prompt, Arrays.copyOf(all, 150));
      for (int i = 0; i < 30; i++) {
        assertEquals(whole.get(i), all[150 + i]);
      }
      assertEquals(30, engine.tokensWritten() + 2); // the last of each generation is read by the next step
    }
  }

  @Test
  void forksAndCutsGoTheirOwnWays() {
    int[] prompt = tokens(4, 140);
    int[] other = tokens(5, 9);
    List<Integer> expected = alone(prompt, greedy(12));
    int[] joined = Arrays.copyOf(prompt, 149);
    System.arraycopy(other, 0, joined, 140, 9);
    List<Integer> branched = alone(joined, greedy(12));
    try (Engine engine = Engine.builder(model).build();
        Session session = engine.newSession()) {
      session.append(prompt);
      assertEquals(expected, session.generate(greedy(12)).join().tokens());
      try (Session fork = session.fork()) {
        fork.truncate(140);
        fork.append(other);
        assertEquals(branched, fork.generate(greedy(12)).join().tokens());
      }
      session.truncate(140);
      assertEquals(expected, session.generate(greedy(12)).join().tokens());
      session.truncate(0);
      session.append(joined);
      assertEquals(branched, session.generate(greedy(12)).join().tokens());
      assertThrows(IllegalArgumentException.class, () -> session.truncate(1000));
      assertThrows(IllegalArgumentException.class, () -> session.truncate(-1));
    }
  }

  @Test
  void stopTokensEndAText() {
    int[] prompt = tokens(6, 20);
    List<Integer> free = alone(prompt, greedy(20));
    int stop = free.get(7);
    int at = free.indexOf(stop);
    try (Engine engine = Engine.builder(model).build();
        Session session = engine.newSession()) {
      session.append(prompt);
      StringBuilder heard = new StringBuilder();
      Generation.Result result =
          session
              .generate(greedy(20).alsoStopAt(stop).listener((token, text) -> heard.append(text)))
              .join();
      assertEquals(free.subList(0, at + 1), result.tokens());
      assertEquals(End.STOP, result.end());
      assertTrue(result.text().startsWith(heard.toString()));
    }
  }

  @Test
  void theModelsContextIsAnEnd() {
    try (Engine engine = Engine.builder(model).build();
        Session session = engine.newSession()) {
      session.append(tokens(7, 1020));
      Generation.Result result = session.generate(greedy(50)).join();
      assertEquals(4, result.tokens().size());
      assertEquals(End.LENGTH, result.end());
      assertThrows(IllegalArgumentException.class, () -> session.append(1));
    }
  }

  @Test
  void cancellationEndsAGenerationAndNoMore() {
    try (Engine engine = Engine.builder(model).build();
        Session session = engine.newSession()) {
      session.append(tokens(8, 10));
      Generation.Result result =
          session.generate(greedy(1000).listener((token, text) -> session.cancel())).join();
      assertEquals(End.CANCELLED, result.end());
      assertTrue(result.tokens().size() < 1000);
      session.truncate(10);
      assertEquals(alone(tokens(8, 10), greedy(5)), session.generate(greedy(5)).join().tokens());
    }
  }

  @Test
  void whoeverDoesNotFitFailsAlone() {
    // Room for the short ones, and not for a thousand tokens.
    try (Engine engine = Engine.builder(model).budgetBytes(400_000).build();
        Session small = engine.newSession();
        Session large = engine.newSession()) {
      small.append(tokens(9, 10));
      large.append(tokens(10, 1000));
      CompletableFuture<Generation.Result> failing = large.generate(greedy(5));
      CompletableFuture<Generation.Result> fine = small.generate(greedy(20));
      Throwable cause = assertThrows(CompletionException.class, failing::join).getCause();
      assertInstanceOf(BudgetExceededException.class, cause);
      assertEquals(alone(tokens(9, 10), greedy(20)), fine.join().tokens());
      large.truncate(0);
      large.append(tokens(11, 12));
      assertEquals(alone(tokens(11, 12), greedy(5)), large.generate(greedy(5)).join().tokens());
    }
  }

  @Test
  void aListenerThatThrowsFailsItsOwnGeneration() {
    try (Engine engine = Engine.builder(model).build();
        Session bad = engine.newSession();
        Session good = engine.newSession()) {
      bad.append(tokens(12, 5));
      good.append(tokens(13, 5));
      CompletableFuture<Generation.Result> failing =
          bad.generate(
              greedy(5)
                  .listener(
                      (token, text) -> {
                        throw new UnsupportedOperationException("no");
                      }));
      CompletableFuture<Generation.Result> fine = good.generate(greedy(5));
      assertInstanceOf(
          UnsupportedOperationException.class, assertThrows(CompletionException.class, failing::join).getCause());
      assertEquals(alone(tokens(13, 5), greedy(5)), fine.join().tokens());
      assertEquals(1, bad.generate(greedy(1)).join().tokens().size());
    }
  }

  @Test
  void misuseIsRefused() {
    Engine engine = Engine.builder(model).maxSessions(2).build();
    Session session = engine.newSession();
    assertThrows(IllegalStateException.class, () -> session.generate(greedy(1)));
    assertThrows(IllegalArgumentException.class, () -> session.append(-1));
    assertThrows(IllegalArgumentException.class, () -> session.append(TinyModel.VOCABULARY));
    session.append(1, 2);
    Session second = session.fork();
    assertThrows(IllegalStateException.class, session::fork);
    assertThrows(IllegalStateException.class, engine::newSession);
    second.close();
    second.close();
    assertThrows(IllegalStateException.class, () -> second.append(1));
    CompletableFuture<Generation.Result> running =
        session.generate(
            greedy(500)
                .listener(
                    (token, text) -> {
                      assertThrows(IllegalStateException.class, () -> session.append(1));
                      assertThrows(IllegalStateException.class, () -> session.truncate(0));
                      assertThrows(IllegalStateException.class, session::fork);
                      assertThrows(IllegalStateException.class, () -> session.generate(greedy(1)));
                    }));
    engine.close();
    assertEquals(End.CANCELLED, running.join().end());
    assertThrows(IllegalStateException.class, engine::newSession);
    assertThrows(IllegalStateException.class, () -> session.generate(greedy(1)));
    assertThrows(IllegalArgumentException.class, () -> Engine.builder(model).stepTokens(5));
    assertThrows(IllegalArgumentException.class, () -> new Generation(0, Sampling.GREEDY, Set.of(), null));
  }

  @Test
  void textArrivesInWholeCharacters() {
    TextStream stream = new TextStream();
    assertEquals("a", stream.add(new byte[] {'a', (byte) 0xC3}));
    assertEquals("ä", stream.add(new byte[] {(byte) 0xA4}));
    assertEquals("", stream.add(new byte[] {(byte) 0xF0, (byte) 0x9F}));
    assertEquals("", stream.add(new byte[] {(byte) 0x98}));
    assertEquals("\uD83D\uDE00", stream.add(new byte[] {(byte) 0x80}));
    assertEquals("\uFFFDx", stream.add(new byte[] {(byte) 0x80, 'x'}));
    assertEquals("", stream.add(new byte[] {(byte) 0xE2}));
    assertFalse(stream.rest().isEmpty());
    assertEquals("", stream.rest());
  }

  @Test
  void sessionsReuseWhatOthersRead() throws Exception {
    ModelFingerprint weights = ModelFingerprint.of(new byte[] {1});
    int[] prompt = tokens(77, 400);
    Path blocks = folder.resolve("blocks");
    List<Integer> first;
    try (Engine engine =
        Engine.builder(model).prefixes(weights, settings -> settings.folder(blocks, 1 << 30)).build()) {
      first = answer(engine, prompt, null, 0);
      assertEquals(first, answer(engine, prompt, null, 384), "what is sealed and 16 bits is the same");
      Tenant ann = Tenant.of("ann", new byte[0]);
      assertEquals(first, answer(engine, prompt, ann, 256), "256 of 300 are everybody's");
      assertEquals(first, answer(engine, prompt, ann, 384));
      assertEquals(first, answer(engine, prompt, Tenant.of("bob", new byte[0]), 256));
      assertEquals(5, engine.prefixStats().orElseThrow().lookups());
    }
    try (Engine engine =
        Engine.builder(model).prefixes(weights, settings -> settings.folder(blocks, 1 << 30)).build()) {
      assertEquals(first, answer(engine, prompt, null, 384));
    }
  }

  private static List<Integer> answer(Engine engine, int[] prompt, Tenant tenant, int reused) {
    try (Session session = engine.newSession()) {
      if (tenant != null) {
        session.tenant(tenant, 300);
      }
      session.append(prompt);
      Generation.Result result = session.generate(greedy(10)).join();
      assertEquals(reused, result.reusedTokens());
      return result.tokens();
    }
  }

  @Test
  void prefixesGiveWayToSessions() {
    ModelFingerprint weights = ModelFingerprint.of(new byte[] {1});
    long budget;
    try (Engine engine = Engine.builder(model).build();
        Session session = engine.newSession()) {
      session.append(tokens(1, 400));
      session.generate(greedy(10)).join();
      budget = 2 * engine.stats().bytes();
    }
    try (Engine engine =
        Engine.builder(model).budgetBytes(budget).prefixes(weights, settings -> settings).build()) {
      for (int i = 0; i < 8; i++) {
        assertEquals(alone(tokens(i, 400), greedy(10)), answer(engine, tokens(i, 400), null, 0));
      }
      assertTrue(engine.prefixStats().orElseThrow().tiers().get(Tier.POOL).holdings().evicted() > 0);
    }
  }

  private static final ModelFingerprint WEIGHTS = ModelFingerprint.of(new byte[] {1});

  /** What is pending fails within seconds instead of hanging. */
  private static <T> T soon(CompletableFuture<T> result) throws Exception {
    return result.get(30, TimeUnit.SECONDS);
  }

  private static Throwable failureOf(CompletableFuture<?> result) {
    return assertThrows(ExecutionException.class, () -> soon(result)).getCause();
  }

  @Test
  void publishingFailsNobody() throws Exception {
    AtomicBoolean broken = new AtomicBoolean();
    try (Engine engine =
            Engine.builder(model)
                .prefixes(
                    WEIGHTS,
                    settings ->
                        settings.executor(
                            task -> {
                              if (broken.get()) {
                                throw new IllegalArgumentException("no");
                              }
                              task.run();
                            }))
                .build();
        Session session = engine.newSession()) {
      session.append(tokens(20, 400));
      Generation wanted = greedy(10);
      CompletableFuture<Generation.Result> result =
          session.generate(wanted.listener((token, text) -> broken.set(true))); // the text is published at its end
      assertEquals(alone(tokens(20, 400), wanted), soon(result).tokens());
      assertEquals(1, soon(session.generate(greedy(1))).tokens().size());
    }
  }

  /** A model whose tokenizer fails where it says what the first token is. */
  private static Model failing(Supplier<Throwable> failure) throws IOException {
    AtomicBoolean once = new AtomicBoolean();
    Tokenizer broken =
        new NoText() {
          @Override
          public byte[] decode(int... tokens) {
            if (once.getAndSet(true)) {
              return new byte[0];
            }
            Throwable thrown = failure.get();
            if (thrown instanceof Error error) {
              throw error;
            }
            throw (RuntimeException) thrown;
          }
        };
    try (SafetensorsModel file = SafetensorsModel.open(folder)) {
      return Model.of(folder, ModelConfig.read(folder), broken, file);
    }
  }

  @Test
  void whatFailsAfterAStepFailsOneSession() throws Exception {
    for (Supplier<Throwable> failure :
        List.<Supplier<Throwable>>of(UnsupportedOperationException::new, OutOfMemoryError::new)) {
      try (Engine engine = Engine.builder(failing(failure)).build();
          Session bad = engine.newSession();
          Session good = engine.newSession()) {
        bad.append(tokens(21, 5));
        good.append(tokens(22, 5));
        assertInstanceOf(failure.get().getClass(), failureOf(bad.generate(greedy(5))));
        assertEquals(alone(tokens(22, 5), greedy(5)), soon(good.generate(greedy(5))).tokens());
      }
    }
  }

  @Test
  void anEngineThatEndsUnforeseenLeavesNobodyWaiting() throws Exception {
    AssertionError cause = new AssertionError("unforeseen");
    CountDownLatch both = new CountDownLatch(1);
    Model broken =
        failing(
            () -> {
              awaited(both);
              return cause;
            });
    try (Engine engine = Engine.builder(broken).build();
        Session one = engine.newSession();
        Session other = engine.newSession()) {
      one.append(tokens(23, 5));
      other.append(tokens(24, 5));
      CompletableFuture<Generation.Result> first = one.generate(greedy(5));
      CompletableFuture<Generation.Result> second = other.generate(greedy(5));
      both.countDown();
      assertSame(cause, failureOf(first));
      assertSame(cause, failureOf(second));
      assertSame(cause, assertThrows(IllegalStateException.class, () -> one.generate(greedy(1))).getCause());
      assertThrows(IllegalStateException.class, engine::newSession);
    }
  }

  @Test
  void aCloseEndsWhoWaitsForALookup() throws Exception {
    ConcurrentLinkedQueue<Runnable> begun = new ConcurrentLinkedQueue<>();
    Engine engine = Engine.builder(model).prefixes(WEIGHTS, settings -> settings.executor(begun::add)).build();
    Session session = engine.newSession();
    session.append(tokens(25, 200));
    CompletableFuture<Generation.Result> result = session.generate(greedy(5));
    engine.close();
    assertEquals(End.CANCELLED, soon(result).end());
    begun.forEach(Runnable::run); // too late, and no harm
    assertThrows(IllegalStateException.class, () -> session.append(1));
  }

  @Test
  void writersLeaveRoomForPrompts() throws Exception {
    int[] prompt = tokens(26, 300);
    int[] begun = tokens(27, 3);
    for (int room : new int[] {128, 129, 200}) {
      try (Engine engine = Engine.builder(model).stepTokens(room).build();
          Session reader = engine.newSession()) {
        reader.append(prompt);
        AtomicReference<CompletableFuture<Generation.Result>> read = new AtomicReference<>();
        AtomicInteger ended = new AtomicInteger();
        AtomicInteger endedBefore = new AtomicInteger(-1);
        List<CompletableFuture<Generation.Result>> written = new ArrayList<>();
        int writers = room - 127; // so many that no chunk is left room for
        for (int i = 0; i < writers; i++) {
          Session writer = engine.newSession();
          writer.append(begun);
          AtomicInteger count = new AtomicInteger();
          boolean starts = i == 0;
          written.add(
              writer.generate(
                  greedy(60)
                      .listener(
                          (token, text) -> {
                            if (starts && count.get() == 0) {
                              read.set(
                                  reader.generate(greedy(1).listener((a, b) -> endedBefore.set(ended.get()))));
                            }
                            if (count.incrementAndGet() == 60) {
                              ended.incrementAndGet();
                            }
                          })));
        }
        List<Integer> expected = alone(begun, greedy(60));
        for (CompletableFuture<Generation.Result> each : written) {
          assertEquals(expected, soon(each).tokens());
        }
        assertEquals(alone(prompt, greedy(1)), soon(read.get()).tokens());
        assertEquals(0, endedBefore.get(), "writers that had ended when the prompt was read, of " + writers);
      }
    }
  }

  @Test
  void whatDependsOnAResultMayWaitForTheEngine() throws Exception {
    Generation wanted = greedy(4);
    List<Integer> expected = alone(tokens(28, 5), wanted);
    CountDownLatch attached = new CountDownLatch(1);
    // Closed by what depends on a result, and by nothing else: a close would wait for an engine that is stuck.
    Engine engine = Engine.builder(model).build();
    List<Session> sessions = List.of(engine.newSession(), engine.newSession(), engine.newSession());
    sessions.forEach(session -> session.append(tokens(28, 5)));
    Session one = sessions.get(0);
    Session bad = sessions.get(1);
    CompletableFuture<Generation.Result> first =
        one.generate(wanted.listener((token, text) -> awaited(attached)));
    CompletableFuture<Generation.Result> failing =
        bad.generate(
            wanted.listener(
                (token, text) -> {
                  throw new UnsupportedOperationException("no");
                }));
    CompletableFuture<List<Integer>> second =
        first.thenApply(result -> sessions.get(2).generate(wanted).join().tokens());
    CompletableFuture<Integer> afterFailure =
        failing.handle((result, failure) -> bad.generate(greedy(2)).join().tokens().size());
    attached.countDown();
    assertEquals(expected, soon(second));
    assertEquals(2, soon(afterFailure));
    soon(one.generate(greedy(3)).thenRun(engine::close));
    assertThrows(IllegalStateException.class, engine::newSession);
  }

  @Test
  void interruptsOfAListenerAreTheirOwn() throws Exception {
    Path file = folder.resolve("interrupted.gguf");
    TinyModel.gguf(file, "llama", 5);
    Model mapped = Model.load(file);
    AtomicInteger seen = new AtomicInteger();
    try (Engine engine = Engine.builder(mapped).build();
        Session session = engine.newSession()) {
      session.append(tokens(29, 5));
      Generation.Result result =
          soon(
              session.generate(
                  greedy(5)
                      .listener(
                          (token, text) -> {
                            seen.addAndGet(Thread.currentThread().isInterrupted() ? 1 : 0);
                            Thread.currentThread().interrupt();
                          })));
      assertEquals(5, result.tokens().size());
      assertEquals(0, seen.get());
    }
  }

  @Test
  void anEngineThatCannotBeMadeLeavesNothingOpen() throws Exception {
    AtomicBoolean closed = new AtomicBoolean();
    BlockStore store =
        (BlockStore)
            Proxy.newProxyInstance(
                EngineTest.class.getClassLoader(),
                new Class<?>[] {BlockStore.class},
                (proxy, method, arguments) -> {
                  closed.compareAndSet(false, method.getName().equals("close"));
                  return null;
                });
    try (SafetensorsModel file = SafetensorsModel.open(folder)) {
      WeightFile heap =
          new WeightFile() {
            @Override
            public Set<String> names() {
              return file.names();
            }

            @Override
            public boolean has(String name) {
              return file.has(name);
            }

            @Override
            public Weights read(String name) throws IOException {
              Weights found = file.read(name);
              ByteBuffer copy = ByteBuffer.allocate((int) found.size()).put(found.bytes().duplicate()).flip();
              return new Weights(name, found.type(), found.rows(), found.width(), copy);
            }

            @Override
            public void close() {}
          };
      Model unfit = Model.of(folder, ModelConfig.read(folder), model.tokenizer(), heap);
      Engine.Builder builder = Engine.builder(unfit).prefixes(WEIGHTS, settings -> settings.remote(store));
      assertThrows(IllegalArgumentException.class, builder::build);
    }
    assertTrue(closed.get());
  }
}
