package dev.kvasir.lab.cli;

import dev.kvasir.lab.evaluate.ProgressBar;
import dev.kvasir.runner.Engine;
import dev.kvasir.runner.Generation;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.Session;
import dev.kvasir.runner.text.ChatTemplate;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParentCommand;

@Command(
    name = "generate",
    description = "Lets a model continue a text, or answer a message. Ctrl-C ends it early.",
    mixinStandardHelpOptions = true)
final class GenerateCommand implements Callable<Integer> {

  @ParentCommand private Main main;
  @Mixin private CacheOptions cache;
  @Mixin private SamplingOptions sampling;

  @Option(names = "--model", paramLabel = "FILE", required = true, description = "A GGUF file, or a model's folder.")
  private Path path;

  @Option(names = "--prompt", paramLabel = "TEXT", required = true, description = "What the text begins with.")
  private String prompt;

  @Option(names = "--chat", description = "The prompt is a message, in the model's chat template; the model answers.")
  private boolean chat;

  @Override
  public Integer call() throws IOException {
    cache.check();
    sampling.check();
    Model model = Model.load(path);
    try (Engine engine = cache.engine(model).build();
        Session session = engine.newSession()) {
      Generation wanted = Generation.greedy(model, sampling.tokens).sampling(sampling.sampling());
      if (chat) {
        ChatTemplate template = model.chatTemplate();
        session.append(template.encode(List.of(new ChatTemplate.Message(ChatTemplate.Role.USER, prompt)), true));
        wanted = wanted.alsoStopAt(template.end());
      } else {
        session.append(prompt);
        main.out().print(prompt);
      }
      main.endsWhenStopped(() -> {});
      int read = session.length();
      LiveText text = new LiveText(main.out(), ProgressBar.onTerminal());
      Generation.Result result =
          await(main, session, session.generate(wanted.listener((token, piece) -> text.written(piece, engine))));
      text.end(engine, read);
      return result.end() == Generation.End.CANCELLED ? Main.STOPPED : 0;
    }
  }

  /** Waits for a generation, and cancels it where the user wants to stop. Failures are those of the generation. */
  static Generation.Result await(Main main, Session session, CompletableFuture<Generation.Result> future) {
    while (true) {
      try {
        return future.get(100, TimeUnit.MILLISECONDS);
      } catch (TimeoutException e) {
        if (main.stopped()) {
          session.cancel();
        }
      } catch (InterruptedException e) {
        session.cancel();
      } catch (ExecutionException e) {
        if (e.getCause() instanceof RuntimeException failure) {
          throw failure;
        }
        throw new CompletionException(e.getCause());
      }
    }
  }
}
