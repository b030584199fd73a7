package dev.kvasir.runner;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.kvasir.KvMethod;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import dev.kvasir.runner.text.ChatTemplate;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** TinyLlama-1.1B-Chat as a GGUF file, which KVASIR_TEST_MODEL names; skipped where it does not. */
class RealModelTest {

  static final List<KvMethod> FOUR_BITS_AND_MORE =
      List.of(
          new HalfPrecision(), Uniform.bits(8), Uniform.bits(4), PatternKv.bits(8), PatternKv.bits(4), PmKvq.floor(4),
          MixKvq.budget(4));

  static int[] askForTheTower(ChatTemplate template) throws Exception {
    return template.encode(
        List.of(new ChatTemplate.Message(ChatTemplate.Role.USER, "The Eiffel Tower is located in")), true);
  }

  static Model model() throws Exception {
    String file = System.getenv("KVASIR_TEST_MODEL");
    assumeTrue(file != null && Files.exists(Path.of(file)), "KVASIR_TEST_MODEL names no file");
    return Model.load(Path.of(file));
  }

  /** Tokens that another implementation makes of the same vocabulary. */
  @Test
  void tokensAreThoseOfOthers() throws Exception {
    assertArrayEquals(
        new int[] {450, 382, 2593, 295, 23615, 338, 5982, 297},
        model().tokenizer().encode("The Eiffel Tower is located in"));
  }

  @Test
  void everyMethodOfFourBitsAndMoreKnowsWhereTheTowerIs() throws Exception {
    Model model = model();
    ChatTemplate template = model.chatTemplate();
    assertEquals(ChatTemplate.Family.ZEPHYR, template.family());
    int[] prompt = askForTheTower(template);
    for (KvMethod method : FOUR_BITS_AND_MORE) {
      try (Engine engine = Engine.builder(model).method(method).build();
          Session session = engine.newSession()) {
        session.append(prompt);
        String answer = session.generate(Generation.greedy(model, 16)).join().text();
        assertTrue(answer.contains("Paris"), method + ": " + answer);
      }
    }
  }

  @Test
  void sixtyFourSessionsGetWhatTheyGetAlone() throws Exception {
    Model model = model();
    int[] text = model.tokenizer().encode("Once upon a time there was a king who had three daughters. ".repeat(8));
    List<CompletableFuture<Generation.Result>> results = new ArrayList<>();
    try (Engine together = Engine.builder(model).build();
        Engine single = Engine.builder(model).build()) {
      for (int i = 0; i < 64; i++) {
        Session session = together.newSession();
        session.append(java.util.Arrays.copyOf(text, 1 + i * 2));
        results.add(session.generate(Generation.greedy(model, 3 + i % 4)));
      }
      for (int i = 0; i < 64; i++) {
        try (Session alone = single.newSession()) {
          alone.append(java.util.Arrays.copyOf(text, 1 + i * 2));
          assertEquals(
              alone.generate(Generation.greedy(model, 3 + i % 4)).join().tokens(),
              results.get(i).join().tokens(),
              "session " + i);
        }
      }
    }
  }
}
