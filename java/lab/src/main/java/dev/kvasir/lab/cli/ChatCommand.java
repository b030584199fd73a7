package dev.kvasir.lab.cli;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.lab.evaluate.ProgressBar;
import dev.kvasir.runner.Engine;
import dev.kvasir.runner.Generation;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.Session;
import dev.kvasir.runner.text.ChatTemplate;
import dev.kvasir.runner.text.ChatTemplate.Message;
import dev.kvasir.runner.text.ChatTemplate.Role;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParentCommand;

@Command(
    name = "chat",
    description = {
      "Talks with a model: a line is a message, and an answer follows.",
      "/undo takes back the last message and its answer; the end of the input ends the conversation.",
      "A message that there is no room for is left out, and the conversation goes on."
    },
    mixinStandardHelpOptions = true)
final class ChatCommand implements Callable<Integer> {

  @ParentCommand private Main main;
  @Mixin private CacheOptions cache;
  @Mixin private SamplingOptions sampling;

  @Option(names = "--model", paramLabel = "FILE", required = true, description = "A GGUF file, or a model's folder.")
  private Path path;

  @Option(names = "--system", paramLabel = "TEXT", description = "What the model is told before all else.")
  private @Nullable String system;

  /** A message and its answer: where they begin, where the answer does, and whether the system's message is among them. */
  private record Turn(int begin, int answer, String text, boolean system) {}

  @Override
  public Integer call() throws IOException {
    cache.check();
    sampling.check();
    Model model = Model.load(path);
    ChatTemplate template = model.chatTemplate();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    List<Turn> turns = new ArrayList<>();
    boolean refused = false;
    Generation wanted =
        Generation.greedy(model, sampling.tokens).sampling(sampling.sampling()).alsoStopAt(template.end());
    try (Engine engine = cache.engine(model).build();
        Session session = engine.newSession()) {
      while (!main.stopped()) {
        main.out().print("> ");
        main.out().flush();
        String line = in.readLine();
        if (line == null) {
          break;
        }
        if (line.strip().equals("/undo")) {
          session.truncate(turns.isEmpty() ? 0 : turns.remove(turns.size() - 1).begin);
        } else if (!line.isBlank()) {
          if (template.systemMoves() && !turns.isEmpty()) {
            turns.add(withoutSystem(session, template, turns.remove(turns.size() - 1)));
          }
          int begin = session.length();
          try {
            turns.add(answer(engine, session, template, line, wanted));
          } catch (IllegalArgumentException | BudgetExceededException e) {
            // A message that there is no room for is no reason to forget the others.
            session.truncate(begin);
            refused = true;
            main.out().println("[not answered: " + e.getMessage() + "]");
          }
        }
      }
    }
    return main.stopped() ? Main.STOPPED : refused ? 1 : 0;
  }

  /** Writes the last turn as the template has it once another follows: the answer as it is, the message alone. */
  private static Turn withoutSystem(Session session, ChatTemplate template, Turn turn) throws IOException {
    if (!turn.system) {
      return turn;
    }
    int[] all = session.tokens();
    session.truncate(turn.begin);
    session.append(template.encode(List.of(new Message(Role.USER, turn.text)), turn.begin == 0));
    int answer = session.length();
    session.append(Arrays.copyOfRange(all, turn.answer, all.length));
    return new Turn(turn.begin, answer, turn.text, false);
  }

  private Turn answer(Engine engine, Session session, ChatTemplate template, String line, Generation wanted)
      throws IOException {
    int begin = session.length();
    boolean first = begin == 0;
    List<Message> messages = new ArrayList<>();
    boolean told = system != null && (first || template.systemMoves());
    if (told) {
      messages.add(new Message(Role.SYSTEM, system));
    }
    messages.add(new Message(Role.USER, line));
    int[] tokens = template.encode(messages, first);
    session.append(tokens);
    LiveText text = new LiveText(main.out(), ProgressBar.onTerminal());
    Generation.Result result =
        GenerateCommand.await(
            main,
            session,
            session.generate(wanted.listener((token, piece) -> text.written(piece, engine))));
    text.end(engine, tokens.length);
    endTurn(session, result, template.end());
    return new Turn(begin, begin + tokens.length, line, told);
  }

  /** Whatever ended an answer, its turn ends as all do: the next is none of what was cut off. */
  static void endTurn(Session session, Generation.Result result, int end) {
    List<Integer> written = result.tokens();
    if (!written.isEmpty() && written.get(written.size() - 1) == end) {
      return;
    }
    if (result.end() == Generation.End.STOP) {
      session.truncate(session.length() - 1); // the end of a text stands for that of a turn
    }
    if (session.length() < session.engine().model().config().maxPositions()) {
      session.append(end);
    }
  }
}
