package dev.kvasir.lab.cli;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.runner.Engine;
import dev.kvasir.runner.GgufWriter;
import dev.kvasir.runner.Generation;
import dev.kvasir.runner.Generation.End;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.Session;
import dev.kvasir.runner.TinyModel;
import dev.kvasir.runner.text.ChatTemplate;
import dev.kvasir.runner.text.ChatTemplate.Message;
import dev.kvasir.runner.text.ChatTemplate.Role;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Turns of a conversation, which the template's token ends whatever ended the answer. */
class ChatCommandTest {

  private static final int END = 259;

  @TempDir Path folder;

  private int[] turn(Engine engine, int wanted, int... stops) {
    try (Session session = engine.newSession()) {
      session.append(1, 2, 3);
      Generation generation = Generation.greedy(engine.model(), wanted);
      for (int stop : stops) {
        generation = generation.alsoStopAt(stop);
      }
      Generation.Result result = session.generate(generation).join();
      assertEquals(stops.length == 0 ? End.LENGTH : End.STOP, result.end());
      ChatCommand.endTurn(session, result, stops.length == 2 ? stops[0] : END);
      return session.tokens();
    }
  }

  private Path chatModel(String template) throws IOException {
    List<String> tokens = new ArrayList<>();
    for (int i = 0; i < TinyModel.VOCABULARY; i++) {
      tokens.add(i < 256 ? String.format("<0x%02X>", i) : i == TinyModel.BOS + 1 ? "</s>" : "<special " + i + ">");
    }
    Path file = folder.resolve("chat.gguf");
    GgufWriter gguf = TinyModel.gguf(file, "llama", 9).gguf();
    gguf.texts("tokenizer.ggml.tokens", tokens);
    gguf.text("tokenizer.chat_template", template);
    gguf.write(file);
    return file;
  }

  /** One message too long does not end the conversation, and costs the others nothing. */
  @Test
  void whatThereIsNoRoomForIsLeftOut() throws Exception {
    Path file = chatModel("{{ '<|user|>' + message['content'] + eos_token }}<|assistant|>");
    String few = "first\nsecond\n";
    String said = said(0, file, few);
    assertEquals(said, said(1, file, "first\n" + "x".repeat(2000) + "\nsecond\n").replaceAll("\\[not answered: [^]]*]\n> ", ""));
    assertTrue(said(1, file, "x".repeat(2000)).contains("more; the model was made for 1024]"));
    assertTrue(said(1, file, few, "--budget=10").contains("budget is 10 bytes"));
  }

  /** As Mistral Nemo's template has it: the turns before are as if there were no system. */
  @Test
  void aSystemThatStandsInTheLastMessageMoves() throws Exception {
    Path file = chatModel("{%- if loop.last and system_message is defined %}[INST]");
    String said = said(0, file, "first\n/undo\nsecond\nthird\nfourth\n", "--system=Be brief.");
    try (Engine engine = Engine.builder(Model.load(file)).build();
        Session session = engine.newSession()) {
      ChatTemplate template = engine.model().chatTemplate();
      Generation wanted = Generation.greedy(engine.model(), 3).alsoStopAt(template.end());
      Message system = new Message(Role.SYSTEM, "Be brief.");
      for (String text : List.of("second", "third", "fourth")) {
        Message asked = new Message(Role.USER, text);
        int begin = session.length();
        session.append(template.encode(List.of(system, asked), begin == 0));
        int answer = session.length();
        Generation.Result result = session.generate(wanted).join();
        String written = "> " + result.text().replace("\uFFFD", ""); // halves of letters
        assertTrue(said.contains(written), text + ": " + written + " is not in " + said);
        said = said.substring(said.indexOf(written) + 2);
        ChatCommand.endTurn(session, result, template.end());
        int[] answered = Arrays.copyOfRange(session.tokens(), answer, session.length());
        session.truncate(begin);
        session.append(template.encode(List.of(asked), begin == 0));
        session.append(answered);
      }
    }
  }

  /** But for how long it took. */
  private static String said(int code, Path model, String in, String... more) {
    List<String> args = new ArrayList<>(List.of("chat", "--model=" + model, "--tokens=3"));
    args.addAll(List.of(more));
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    InputStream before = System.in;
    System.setIn(new ByteArrayInputStream(in.getBytes(StandardCharsets.UTF_8)));
    try {
      int found = Main.run(args.toArray(new String[0]), new PrintStream(out), new AtomicBoolean());
      String said = out.toString(StandardCharsets.UTF_8);
      assertEquals(code, found, said);
      return said.replaceAll("in [0-9.]+ s|[0-9.]+/s", "");
    } finally {
      System.setIn(before);
    }
  }

  @Test
  void turnsEndAsTheTemplateHasIt() throws Exception {
    TinyModel.qwen2(folder, 8);
    try (Engine engine = Engine.builder(Model.load(folder)).build()) {
      int[] cut = turn(engine, 3);
      assertEquals(7, cut.length);
      assertEquals(END, cut[6]);
      int first = cut[3];
      assertArrayEquals(new int[] {1, 2, 3, END}, turn(engine, 3, first)); // in the place of another stop
      assertArrayEquals(new int[] {1, 2, 3, first}, turn(engine, 3, first, first));
      int most = engine.model().config().maxPositions();
      try (Session session = engine.newSession()) {
        session.append(Arrays.copyOf(cut, most));
        ChatCommand.endTurn(session, session.generate(Generation.greedy(engine.model(), 1)).join(), END);
        assertEquals(most + 1, session.length());
      }
    }
  }
}
