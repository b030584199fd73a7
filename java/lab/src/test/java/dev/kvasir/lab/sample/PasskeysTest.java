package dev.kvasir.lab.sample;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.runner.Model;
import dev.kvasir.runner.TinyModel;
import dev.kvasir.runner.file.ModelException;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class PasskeysTest {

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

  @Test
  void samplesThatBeginAlikeAreFound() {
    String text = Letters.random(1, 400);
    List<Sample> batch =
        List.of(task(text + "one", "1"), task(Letters.random(2, 300), "2"), task(text + "other", "3"), task(Letters.random(3, 20), "4"));
    List<SharedBeginning> groups = SharedBeginning.of(batch);
    assertEquals(3, groups.size());
    assertEquals(List.of(0, 2), groups.get(0).samples());
    // The prefix, the text and the letter "o".
    assertEquals(model.tokenizer().prefix().length + 401, groups.get(0).tokens());
    assertEquals(0, groups.get(1).tokens());
  }

  @Test
  void passKeysAreHiddenAndAskedFor() throws Exception {
    StringBuilder text = new StringBuilder();
    for (int i = 0; i < 400; i++) {
      text.append(Letters.random(i, 30)).append(". ");
    }
    byte[] bytes = text.toString().getBytes(StandardCharsets.UTF_8);
    List<Sample> samples = Passkeys.read(List.of(bytes), model.tokenizer(), 7, 1024);
    assertEquals(7, samples.size());
    for (Sample sample : samples) {
      assertTrue(sample.task() && sample.tokens().length <= Passkeys.TOKENS);
      String said = new String(decode(sample.tokens(), 0, sample.tokens().length), StandardCharsets.UTF_8);
      String answer = new String(decode(sample.tokens(), sample.scoredFrom() + 1, sample.tokens().length), StandardCharsets.UTF_8);
      assertTrue(answer.strip().matches("\\d{5}"), answer);
      String asked = said.substring(said.lastIndexOf("The pass key of"));
      assertTrue(said.indexOf(asked) < said.lastIndexOf(asked), "the key is not in the text: " + asked);
    }
    List<SharedBeginning> groups = SharedBeginning.of(samples);
    assertEquals(3, groups.size());
    assertTrue(groups.get(0).tokens() > 350, groups.get(0).tokens() + " tokens are shared");
    assertArrayEquals(samples.get(0).tokens(), Passkeys.read(List.of(bytes), model.tokenizer(), 1, 1024).get(0).tokens());
    assertFalse(Arrays.equals(samples.get(0).tokens(), samples.get(5).tokens()));
    assertThrows(ModelException.class, () -> Passkeys.read(List.of(bytes), model.tokenizer(), 1, 100));
    assertThrows(ModelException.class, () -> Passkeys.read(List.of(new byte[50]), model.tokenizer(), 1, 1024));
  }

  private byte[] decode(int[] tokens, int from, int to) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (int i = from; i < to; i++) {
      out.writeBytes(model.tokenizer().decode(tokens[i]));
    }
    return out.toByteArray();
  }
}
