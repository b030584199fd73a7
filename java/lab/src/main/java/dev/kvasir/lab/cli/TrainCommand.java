package dev.kvasir.lab.cli;

import dev.kvasir.lab.evaluate.Codebooks;
import dev.kvasir.lab.evaluate.Spectra;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.ParentCommand;
import picocli.CommandLine.Spec;
import picocli.CommandLine;

@Command(
    name = "train",
    description = "Trains the codebooks of a method, or finds the bases of Spectral, from what the model reads; writes a profile.",
    mixinStandardHelpOptions = true)
final class TrainCommand implements Callable<Integer> {

  @ParentCommand private Main main;
  @Spec private CommandLine.Model.CommandSpec spec;

  @Parameters(
      paramLabel = "MODEL",
      description = "A GGUF file, or a model's folder: config.json, safetensors, tokenizer.json.")
  private Path path;

  @Option(
      names = "--method",
      required = true,
      paramLabel = "NAME",
      description = "What they are for: spectral, comm-vq-1 or comm-vq-2, with -encoder for its values.")
  private String method;

  @Mixin private LearningOptions learning;

  @Option(names = "--out", paramLabel = "FILE", description = "The profile. Default: NAME.profile.")
  private @Nullable Path target;

  @Override
  public Integer call() throws IOException {
    if (!methods().contains(method)) {
      throw new CommandLine.ParameterException(
          spec.commandLine(), "--method " + method + " is none of " + String.join(", ", methods()));
    }
    learning.check();
    learning.learn(main, path, method, target);
    return 0;
  }

  private static List<String> methods() {
    return Stream.concat(Codebooks.methods().stream(), Stream.of(Spectra.NAME)).toList();
  }
}
