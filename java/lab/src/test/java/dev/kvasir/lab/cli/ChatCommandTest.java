package dev.kvasir.lab.cli;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.kvasir.runner.Engine;
import dev.kvasir.runner.Generation;
import dev.kvasir.runner.Generation.End;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.Session;
import dev.kvasir.runner.TinyModel;
import java.nio.file.Path;
import java.util.Arrays;
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
