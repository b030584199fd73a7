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
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
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

  /** One message too long does not end the conversation, and costs the others nothing. */
  @Test
  void whatThereIsNoRoomForIsLeftOut() throws Exception {
    List<String> tokens = new ArrayList<>();
    for (int i = 0; i < TinyModel.VOCABULARY; i++) {
      tokens.add(i < 256 ? String.format("<0x%02X>", i) : i == TinyModel.BOS + 1 ? "</s>" : "<special " + i + ">");
    }
    Path file = folder.resolve("chat.gguf");
    GgufWriter gguf = TinyModel.gguf(file, "llama", 9).gguf();
    gguf.texts("tokenizer.ggml.tokens", tokens);
    gguf.text("tokenizer.chat_template", "{{ '<|user|>' + message['content'] + eos_token }}<|assistant|>");
    gguf.write(file);
    String few = "first\nsecond\n";
    String said = said(0, file, few);
    assertEquals(said, said(1, file, "first\n" + "x".repeat(2000) + "\nsecond\n").replaceAll("\\[not answered: [^]]*]\n> ", ""));
    assertTrue(said(1, file, "x".repeat(2000)).contains("more; the model was made for 1024]"));
    assertTrue(said(1, file, few, "--budget=10").contains("budget is 10 bytes"));
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
