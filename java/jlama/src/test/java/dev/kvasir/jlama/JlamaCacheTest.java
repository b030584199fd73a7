package dev.kvasir.jlama;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.safetensors.prompt.PromptContext;
import com.github.tjake.jlama.tensor.AbstractTensor;
import com.github.tjake.jlama.tensor.KvBufferCache;
import dev.kvasir.KvStats;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvFileException;
import dev.kvasir.jlama.trial.SmallModel;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.Uniform;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A model of Jlama with compressed caches, beside the same model with its own. */
class JlamaCacheTest {

  private static final int ANSWER = 12;

  @TempDir static Path folder;
  private static AbstractModel model;
  private static List<String> prompts;

  @BeforeAll
  static void load() throws IOException {
    model = SmallModel.load(SmallModel.write(folder.resolve("small")));
    prompts = SmallModel.prompts(60).stream().sorted(Comparator.comparingInt(String::length)).limit(4).toList(); // quick ones
  }

  @AfterAll
  static void close() {
    model.close();
  }

  @Test
  void answersAreJlamasOwn() {
    for (String prompt : prompts.subList(0, 3)) {
      String expected = generate(UUID.randomUUID(), prompt, ANSWER);
      try (JlamaCache cache = JlamaCache.attach(model)) {
        UUID session = UUID.randomUUID();
        assertEquals(expected, generate(session, prompt, ANSWER));
        KvStats stats = cache.cache().stats();
        assertTrue(stats.total().pages() > 0, "nothing was compressed");
        assertTrue(cache.sequence(session).length() > prompt.length());
      }
    }
  }

  @Test
  void sessionsGoOnWhereTheyEnded() {
    String[] turns = {prompts.get(0), prompts.get(1)};
    Turn[] expected = new Turn[2];
    try (KvBufferCache own = new KvBufferCache(model)) {
      KvBufferCache.KvBuffer buffer = own.getKvBuffer(UUID.randomUUID());
      expected[0] = byHand(buffer, turns[0], 0);
      expected[1] = byHand(buffer, turns[1], expected[0].end);
    }
    UUID session = UUID.randomUUID();
    try (JlamaCache cache = JlamaCache.attach(model)) {
      for (int i = 0; i < 2; i++) {
        assertEquals(expected[i].text, generateFrom(session, turns[i], i == 0 ? 0 : expected[0].end), "turn " + i);
        assertEquals(expected[i].end, cache.sequence(session).length());
      }
    }
  }

  @Test
  void branchesAndSavedSessionsGoOnAlike(@TempDir Path files) throws IOException {
    UUID session = UUID.randomUUID();
    UUID branch = UUID.randomUUID();
    Path file = files.resolve("session.kv");
    int length;
    String expected;
    try (JlamaCache cache = JlamaCache.attach(model, Uniform.bits(4))) {
      generate(session, prompts.get(0), ANSWER);
      length = (int) cache.sequence(session).length();
      cache.save(session, file);
      cache.fork(session, branch);
      assertThrows(IllegalStateException.class, () -> cache.fork(session, branch));
      expected = generateFrom(session, prompts.get(1), length);
      assertEquals(expected, generateFrom(branch, prompts.get(1), length));
      assertEquals(Set.of(session, branch), cache.sessions());
    }
    try (JlamaCache cache = JlamaCache.attach(model, Uniform.bits(4))) {
      cache.restore(session, file);
      assertEquals(expected, generateFrom(session, prompts.get(1), length));
    }
    try (JlamaCache cache = JlamaCache.attach(model, Uniform.bits(8))) {
      assertThrows(KvFileException.class, () -> cache.restore(session, file));
      assertEquals(Set.of(), cache.sessions());
    }
  }

  @Test
  void sessionsThatWereLetGoAreNotBegunAnew() {
    UUID[] ids = {UUID.randomUUID(), UUID.randomUUID(), UUID.randomUUID()};
    try (JlamaCache cache = JlamaCache.builder(model).sessions(2).attach()) {
      for (UUID id : ids) {
        generate(id, "open", 1);
      }
      assertEquals(Set.of(ids[1], ids[2]), cache.sessions());
      assertThrows(IllegalStateException.class, () -> generate(ids[0], "open", 1));
      cache.forget(ids[0]);
      generate(ids[0], "open", 1);
      assertEquals(6, cache.sequence(ids[0]).length());
      assertThrows(IllegalArgumentException.class, () -> cache.sequence(ids[1]));
    }
  }

  @Test
  void aForkIsKeptWhereAllOthersAreInUse() {
    UUID session = UUID.randomUUID();
    UUID branch = UUID.randomUUID();
    try (JlamaCache cache = JlamaCache.builder(model).sessions(1).attach()) {
      try (KvBufferCache.KvBuffer used = cache.buffer(session)) {
        cache.fork(session, branch);
        assertEquals(Set.of(session, branch), cache.sessions());
        assertEquals(0, cache.sequence(branch).length());
      }
    }
  }

  @Test
  void aSessionHasAName() {
    try (JlamaCache cache = JlamaCache.attach(model)) {
      assertThrows(NullPointerException.class, () -> cache.buffer(null));
      cache.buffer(UUID.randomUUID()).close();
      assertThrows(NullPointerException.class, () -> cache.fork(cache.sessions().iterator().next(), null));
      assertEquals(1, cache.sessions().size());
      assertEquals(1, cache.cache().stats().sequences());
    }
  }

  @Test
  void aSessionServesOneCallAtATime() {
    UUID session = UUID.randomUUID();
    try (JlamaCache cache = JlamaCache.attach(model)) {
      try (KvBufferCache.KvBuffer first = cache.buffer(session)) {
        assertThrows(IllegalStateException.class, () -> cache.buffer(session));
        assertThrows(IllegalStateException.class, () -> cache.forget(session));
        assertEquals(0, first.getCurrentContextPosition());
      }
      cache.buffer(session).close();
    }
  }

  @Test
  void withoutSessionsEveryCallBeginsAnewAndFreesItsTokens() {
    UUID session = UUID.randomUUID();
    try (JlamaCache cache = JlamaCache.builder(model).sessions(0).attach()) {
      String first = generate(session, prompts.get(0), ANSWER);
      assertEquals(first, generate(session, prompts.get(0), ANSWER));
      assertEquals(0, cache.cache().stats().sequences());
      assertEquals(0, cache.cache().stats().bytes());
    }
  }

  @Test
  void idleSessionsMakeRoomAndWhatDoesNotFitIsRefused() {
    UUID first = UUID.randomUUID();
    UUID second = UUID.randomUUID();
    long bytes;
    try (JlamaCache cache = JlamaCache.attach(model)) {
      generate(first, prompts.get(0), ANSWER);
      bytes = cache.cache().stats().peakBytes();
    }
    long room = bytes + bytes / 4;
    try (JlamaCache cache = JlamaCache.builder(model).settings(s -> s.budgetBytes(room)).attach()) {
      generate(first, prompts.get(0), ANSWER);
      generate(second, prompts.get(0), ANSWER);
      assertEquals(Set.of(second), cache.sessions());
      assertThrows(BudgetExceededException.class, () -> generate(second, prompts.get(0), 2 * prompts.get(0).length() + 64));
      assertTrue(cache.cache().stats().bytes() <= room);
    }
  }

  @Test
  void positionsRewindAndNothingGoesBeyondTheContext(@TempDir Path models) throws IOException {
    UUID session = UUID.randomUUID();
    try (AbstractModel llama = RandomModel.llama(models.resolve("llama"));
        JlamaCache cache = JlamaCache.attach(llama);
        KvBufferCache.KvBuffer buffer = cache.buffer(session)) {
      int[] tokens = SmallModel.tokens(prompts.get(0));
      float[] once = logits(llama, buffer, tokens, 0);
      assertArrayEquals(once, logits(llama, buffer, tokens, 0), 0f);
      assertEquals(tokens.length, buffer.getCurrentContextPosition());
      buffer.setCurrentContextPosition(3);
      assertEquals(3, cache.sequence(session).length());
      assertThrows(IllegalArgumentException.class, () -> buffer.setCurrentContextPosition(4));
      assertThrows(IllegalArgumentException.class, () -> logits(llama, buffer, tokens, 4));
      assertEquals(3, cache.sequence(session).length());
      logits(llama, buffer, new int[508], 3);
      logits(llama, buffer, new int[1], 511); // the last position, which Jlama's own attention cannot reach
      assertThrows(IllegalArgumentException.class, () -> logits(llama, buffer, new int[1], 512));
      assertEquals(512, cache.sequence(session).length());
      assertThrows(UnsupportedOperationException.class, () -> buffer.getKeyTensorForPosition(0, 0));
    }
  }

  @Test
  void whatWasClosedGivesTheModelItsOwnCacheBack() {
    JlamaCache cache = JlamaCache.attach(model);
    KvBufferCache.KvBuffer stale = cache.buffer(UUID.randomUUID());
    assertThrows(IllegalArgumentException.class, () -> JlamaCache.attach(model)); // there is one
    cache.close();
    cache.close();
    assertThrows(UnsupportedOperationException.class, () -> model.batchForward(new int[] {256}, 0, stale));
    try (KvBufferCache.KvBuffer own = new KvBufferCache(model).getEphemeralKvBuffer()) {
      float[] expected = logits(model, own, new int[] {256, 'a'}, 0);
      try (JlamaCache other = JlamaCache.attach(model)) {
        assertThrows(IllegalArgumentException.class, () -> logits(model, own, new int[] {256}, 0));
        assertFalse(other.sessions().iterator().hasNext());
      }
      assertArrayEquals(expected, logits(model, own, new int[] {256, 'a'}, 0), 0f);
    }
  }

  @Test
  void otherKindsOfAttentionAreTheirOwnToo(@TempDir Path models) throws IOException {
    for (AbstractModel each : List.of(RandomModel.llama(models.resolve("l")), RandomModel.gemma2(models.resolve("g")))) {
      int[] tokens = SmallModel.tokens(prompts.get(0));
      float[] expected;
      try (KvBufferCache.KvBuffer own = new KvBufferCache(each).getEphemeralKvBuffer()) {
        expected = outputs(each, own, tokens);
      }
      try (JlamaCache cache = JlamaCache.attach(each, new HalfPrecision());
          KvBufferCache.KvBuffer buffer = cache.buffer(UUID.randomUUID())) {
        float[] got = outputs(each, buffer, tokens);
        double error = 0;
        double norm = 0;
        for (int i = 0; i < got.length; i++) {
          error += Math.pow(got[i] - expected[i], 2);
          norm += Math.pow(expected[i], 2);
        }
        // Keys and values are rounded to 11 bits: 2^-12 of each on average, a few times that after two layers.
        assertTrue(Math.sqrt(error / norm) < 4e-3, each.getModelType() + ": " + Math.sqrt(error / norm));
      }
      each.close();
    }
  }

  private static String generate(UUID session, String prompt, int tokens) {
    return model.generate(session, PromptContext.of(prompt), 0f, prompt.length() + 1 + tokens, (text, time) -> {})
        .responseText;
  }

  private static String generateFrom(UUID session, String prompt, int position) {
    return generate(session, prompt, position + ANSWER);
  }

  private record Turn(String text, int end) {}

  /** What generate does, on a buffer that nobody closes between turns. */
  private static Turn byHand(KvBufferCache.KvBuffer buffer, String prompt, int start) {
    int[] tokens = SmallModel.tokens(prompt);
    int position = start + tokens.length;
    StringBuilder text = new StringBuilder();
    try (AbstractTensor<?, ?> logits = model.makeDenseTensor(model.getConfig().vocabularySize)) {
      AbstractTensor<?, ?> output = model.batchForward(tokens, start, buffer);
      int next = model.sample(output.slice(output.shape().first() - 1), 0, 0, logits);
      text.append(model.getTokenizer().decode(next));
      while (position < start + tokens.length + ANSWER) {
        output = model.forward(next, position++, buffer, Optional.empty());
        next = model.sample(output, 0, 0, logits);
        if (model.getConfig().eosTokens.contains(next)) {
          break;
        }
        text.append(model.getTokenizer().decode(next));
      }
    }
    return new Turn(text.toString(), position);
  }

  private static float[] logits(AbstractModel model, KvBufferCache.KvBuffer buffer, int[] tokens, int position) {
    try (AbstractTensor<?, ?> output = model.batchForward(tokens, position, buffer)) {
      return model.getLogits(output.slice(output.shape().first() - 1));
    }
  }

  /** The last layer's outputs for all tokens. */
  private static float[] outputs(AbstractModel model, KvBufferCache.KvBuffer buffer, int[] tokens) {
    float[] all = new float[tokens.length * model.getConfig().embeddingLength];
    try (AbstractTensor<?, ?> output = model.batchForward(tokens, 0, buffer)) {
      for (int i = 0; i < all.length; i++) {
        all[i] = output.get(i / model.getConfig().embeddingLength, i % model.getConfig().embeddingLength);
      }
    }
    assertTrue(Arrays.stream(new float[][] {all}).allMatch(row -> Float.isFinite(row[0])));
    return all;
  }
}
