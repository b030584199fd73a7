package dev.kvasir.lab.demo;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.lab.evaluate.Calibrations;
import dev.kvasir.lab.evaluate.MethodEntry;
import dev.kvasir.lab.evaluate.Methods;
import dev.kvasir.lab.sample.SampleSets;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The script and its players, on the model that ships. */
class DemoTest {

  private static final int QUESTIONS = 4;
  private static final int STEPS = 6;

  private static Path folder() throws URISyntaxException {
    return Path.of(Objects.requireNonNull(Demo.class.getResource("/dev/kvasir/lab/model/config.json")).toURI()).getParent();
  }

  @Test
  void theScriptAsksWhatTheTextSays() throws Exception {
    Script script = Script.read(folder().resolve("tests"), QUESTIONS, 30);
    assertEquals(QUESTIONS, new HashSet<>(script.questions()).size());
    for (Script.Question question : script.questions()) {
      String name = question.text().replaceAll("open (\\w+): ", "$1");
      assertTrue(script.text().contains("box " + name + " holds " + question.answer() + "\n"), question.text());
    }
    // Nothing in the text gives away what will be asked.
    assertTrue(script.text().length() > 1500 && !script.text().contains("open "));
    assertTrue(script.steps().size() >= 30 && script.program().startsWith("set "));
  }

  /** Of a model that has learned no tasks, keys are asked that its text hides, and it says how it would write on. */
  @Test
  void anyModelIsAskedForKeysAndWritesOn() throws Exception {
    Model model = Model.load(folder());
    Script script =
        Script.of(SampleSets.hiddenKeys(folder().resolve("tests"), model.tokenizer(), model.config().maxPositions()));
    for (Script.Question question : script.questions()) {
      assertTrue(script.text().contains(question.text().strip() + " " + question.answer() + question.end()), question.text());
    }
    MethodEntry.Request request =
        new MethodEntry.Request(model.geometry(), 2, 2, model.config().maxPositions(), new Calibrations(model, List.of()));
    try (Decoder decoder = new Decoder(model);
        Player player = new Player(Methods.named("f16").get(0), decoder, request)) {
      player.read(model.tokenizer().encode(script.text()));
      player.answer(script.questions().get(0));
      player.begin(script.program());
      int first = player.next();
      player.token(first);
      player.token(player.next());
      assertEquals(2, player.steps().size());
      assertEquals(String.valueOf((char) first), player.steps().get(0)); // tokens of this model are bytes
      assertTrue(player.answers().get(0).length() <= script.questions().get(0).answer().length() + 2);
    }
  }

  @Test
  void aModelThatIsNotThereIsSaidInALine(@TempDir Path empty) throws Exception {
    Process demo =
        new ProcessBuilder(
                System.getProperty("java.home") + "/bin/java", "-cp", System.getProperty("java.class.path"),
                Demo.class.getName(), "" + empty.resolve("none"), "" + empty, "" + empty, "" + empty)
            .redirectErrorStream(true)
            .start();
    String said = new String(demo.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    assertEquals("The demo ends: there is no file " + empty.resolve("none"), said.strip());
    assertEquals(1, demo.waitFor());
  }

  @Test
  void aFolderWithoutFactsIsRefused(@TempDir Path empty) throws IOException {
    Files.writeString(empty.resolve("retrieval.jsonl"), "{\"prompt\": \"nothing\", \"answer\": \"x\"}\n");
    Files.writeString(empty.resolve("trace.jsonl"), "{\"prompt\": \"set\", \"answer\": \"a\\nb\"}\n");
    assertThrows(IOException.class, () -> Script.read(empty, QUESTIONS, 2));
  }

  /** With 16 bits the model does what it was trained for; with one bit it does not, in a fraction of the memory. */
  @Test
  void playersSayWhatTheirCacheLetsThem() throws Exception {
    Script script = Script.read(folder().resolve("tests"), QUESTIONS, 30);
    Model model = Model.load(folder());
    Decoder decoder = new Decoder(model);
    MethodEntry.Request request =
        new MethodEntry.Request(model.geometry(), 2, 2, model.config().maxPositions(), new Calibrations(model, List.of()));
    int[] right = new int[2];
    double[] bytes = new double[2];
    List<MethodEntry> methods = Methods.named("uniform-1");
    for (int i = 0; i < 2; i++) {
      try (Player player = new Player(methods.get(i), decoder, request)) {
        player.read(model.tokenizer().encode(script.text()));
        bytes[i] = player.bytes();
        for (Script.Question question : script.questions()) {
          player.answer(question);
        }
        player.begin(script.program());
        for (int step = 0; step < STEPS; step++) {
          player.line(64);
          right[i] += player.steps().get(step).equals(script.steps().get(step)) ? 1 : 0;
        }
        for (int question = 0; question < QUESTIONS; question++) {
          right[i] += player.answers().get(question).equals(script.questions().get(question).answer()) ? 1 : 0;
        }
        assertTrue(player.bits() > 1 && player.bitsPerByte() > 1);
      }
    }
    assertEquals(QUESTIONS + STEPS, right[0]);
    assertTrue(right[1] < right[0], right[1] + " right");
    assertTrue(bytes[1] < bytes[0] / 5, bytes[1] + " bytes of " + bytes[0]);
  }
}
