package dev.kvasir.lab.evaluate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.lab.sample.Letters;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.lab.sample.SampleSets;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.Uniform;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.TinyModel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What makes a sample a matter of minutes: one 16-bit pass, forks of what is shared, and the ends of texts alone. */
class SampleModeTest {

  @TempDir Path folder;
  private Model model;

  @BeforeEach
  void writeModel() throws Exception {
    TinyModel.qwen2(folder, 7);
    model = Model.load(folder);
  }

  private Sample task(String prompt, String answer) {
    return SampleSets.task("task", prompt, answer, model.tokenizer());
  }

  private static MethodEntry entry(String name, KvMethod method) {
    return MethodEntry.of(name, "family", "", method);
  }

  private Outcome run(Map<String, List<Sample>> sets, PromptMode prompt, Evaluation.Listener listener, KvMethod... methods) {
    List<MethodEntry> entries = new ArrayList<>(List.of(Methods.REFERENCE));
    for (int i = 0; i < methods.length; i++) {
      entries.add(entry("m" + i, methods[i]));
    }
    return new Evaluation("tiny", model, sets, entries, prompt, new Calibrations(model, List.of()), listener)
        .run(() -> false);
  }

  /** Scores do not depend on whether a beginning was read for each sample or once; the tokens that are run do. */
  @Test
  void whatIsSharedIsReadOnce() {
    String text = Letters.random(1, 500);
    List<Sample> alike = new ArrayList<>();
    for (int i = 0; i < 4; i++) {
      alike.add(task(text + Letters.random(10 + i, 30), Letters.random(20 + i, 12)));
    }
    for (PromptMode prompt : PromptMode.values()) {
      AtomicLong total = new AtomicLong();
      AtomicLong done = new AtomicLong();
      Evaluation.Listener listener =
          new Evaluation.Listener() {
            @Override
            public void progress(long soFar, long all, String doing) {
              done.set(soFar);
              total.set(all);
            }
          };
      Outcome together = run(Map.of("task", alike), prompt, listener, Uniform.bits(1), PatternKv.bits(2));
      assertEquals(total.get(), done.get());
      long reference = 500 + model.tokenizer().prefix().length + 4 * (30 + 11);
      long others = prompt == PromptMode.EXACT ? 4 * 12 : reference;
      assertEquals(reference + 2 * others, total.get());
      for (int i = 0; i < 4; i++) {
        Outcome alone =
            run(Map.of("task", List.of(alike.get(i))), prompt, Evaluation.Listener.NONE, Uniform.bits(1), PatternKv.bits(2));
        for (int m = 0; m < 3; m++) {
          assertEquals(alone.results().get(m).tasks().get(0), together.results().get(m).tasks().get(i), prompt + " " + m);
        }
      }
    }
  }

  /** Of the end of a text a cache predicts what it would have, had the rest been appended in one piece. */
  @Test
  void endsOfTextsFollowWhatWasReadIn16Bits() {
    Sample whole = SampleSets.text("text", Letters.random(3, 700).getBytes(StandardCharsets.UTF_8), model.tokenizer());
    Map<String, List<Sample>> sets = new LinkedHashMap<>();
    sets.put("text", List.of(whole));
    sets = SampleSets.lastTokens(sets, 50);
    Sample end = sets.get("text").get(0);
    assertEquals(50, end.scored());
    Outcome outcome = run(sets, PromptMode.EXACT, Evaluation.Listener.NONE, Uniform.bits(2));
    MethodResult result = outcome.results().get(1);
    assertEquals(50, result.texts().get(0).tokens());
    assertTrue(result.divergence().value() > 0);
    assertEquals(whole.length(), result.cacheTokens());

    // The same by hand.
    Decoder decoder = new Decoder(model);
    double bits = 0;
    try (KvCache exact = KvCache.builder(model.geometry()).build();
        KvCache cache = KvCache.builder(model.geometry()).method(Uniform.bits(2)).build();
        KvSequence read = exact.newSequence();
        KvSequence sequence = cache.newSequence()) {
      decoder.decode(read, Arrays.copyOf(whole.tokens(), end.scoredFrom()));
      for (int layer = 0; layer < model.geometry().layers(); layer++) {
        float[] keys = read.read(layer, dev.kvasir.Side.KEYS, 0, end.scoredFrom());
        sequence.append(layer, keys, read.read(layer, dev.kvasir.Side.VALUES, 0, end.scoredFrom()), end.scoredFrom());
      }
      for (int t = end.scoredFrom(); t < whole.length(); t++) {
        float[] logits = decoder.decode(sequence, whole.tokens()[t]);
        double sum = 0;
        for (float logit : logits) {
          sum += Math.exp(logit);
        }
        bits += (Math.log(sum) - logits[whole.tokens()[t + 1]]) / Math.log(2);
      }
    }
    assertEquals(Math.pow(2, bits / 50), result.perplexity(), 0.02 * result.perplexity());
  }

  /** Prompts that are compressed in one piece show their queries to methods that go by them. */
  @Test
  void promptsInOnePieceShowTheirQueries() {
    Map<String, List<Sample>> sets = new LinkedHashMap<>();
    // No page is sealed after the prompt, when queries were seen in any case: at 4 sinks and six pages, 772 tokens.
    sets.put("text", List.of(SampleSets.text("text", Letters.random(4, 740).getBytes(StandardCharsets.UTF_8), model.tokenizer())));
    sets = SampleSets.lastTokens(sets, 40);
    Outcome outcome =
        run(sets, PromptMode.EXACT, Evaluation.Listener.NONE, MixKvq.budget(2.7), MixKvq.budget(2.7).queryAware(false));
    assertNotEquals(
        outcome.results().get(1).divergence().value(), outcome.results().get(2).divergence().value(), "tiers are alike");
  }

  @Test
  void bitsAtLongerLengthsFall() {
    Map<String, List<Sample>> sets =
        Map.of("text", List.of(SampleSets.text("text", Letters.random(4, 900).getBytes(StandardCharsets.UTF_8), model.tokenizer())));
    Outcome outcome = run(sets, PromptMode.STREAM, Evaluation.Listener.NONE, Uniform.bits(2), PatternKv.bits(2));
    for (MethodResult result : outcome.results()) {
      double[] bits = {result.bitsAtLength(0), result.bitsAtLength(1), result.bitsAtLength(2)};
      assertTrue(bits[0] >= bits[1] && bits[1] >= bits[2] && bits[2] > 2, Arrays.toString(bits));
    }
    // Pages alone are left: what a page takes, over its elements.
    MethodResult uniform = outcome.results().get(1);
    assertEquals(uniform.pageBits(), uniform.bitsAtLength(2), 0.03 * uniform.pageBits());
    assertEquals(16, outcome.results().get(0).bitsAtLength(2), 0.1);
  }
}
