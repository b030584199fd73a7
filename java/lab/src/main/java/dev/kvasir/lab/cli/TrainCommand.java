package dev.kvasir.lab.cli;

import dev.kvasir.calibrate.Profile;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.lab.evaluate.Calibrations;
import dev.kvasir.lab.evaluate.Codebooks;
import dev.kvasir.runner.Model;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.ParentCommand;
import picocli.CommandLine.Spec;
import picocli.CommandLine;

@Command(
    name = "train",
    description = "Trains the codebooks of a method from texts and tasks that the model reads; writes a profile.",
    mixinStandardHelpOptions = true)
final class TrainCommand implements Callable<Integer> {

  @ParentCommand private Main main;
  @Spec private CommandLine.Model.CommandSpec spec;

  @Parameters(paramLabel = "MODEL", description = "Folder of a model: config.json, safetensors, tokenizer.json.")
  private Path folder;

  @Option(
      names = "--method",
      required = true,
      paramLabel = "NAME",
      description = "What they are for: balanced, smallest, comm-vq-1 or comm-vq-2.")
  private String method;

  @Option(
      names = "--tuning",
      paramLabel = "DIR",
      description = "Texts (*_val.bin) and tasks (*_val.jsonl) to learn from. Default: MODEL/tests.")
  private @Nullable Path tuning;

  @Option(names = "--out", paramLabel = "FILE", description = "The profile. Default: NAME.profile.")
  private @Nullable Path target;

  @Override
  public Integer call() throws IOException {
    if (!Codebooks.methods().contains(method)) {
      throw new CommandLine.ParameterException(
          spec.commandLine(), "--method " + method + " is none of " + String.join(", ", Codebooks.methods()));
    }
    Model model = Model.load(folder);
    Calibrations calibrations =
        new Calibrations(model, Calibrations.files(tuning == null ? folder.resolve("tests") : tuning));
    long start = System.nanoTime();
    CommVqCodebooks codebooks = Codebooks.train(calibrations, method);
    Path file = target == null ? Path.of(method + ".profile") : target;
    Profile.builder(model.geometry()).codebooks(codebooks).note("method", method).build().save(file);
    main.out().printf(Locale.ROOT, "Profile: %s, after %.0f s%n", file, (System.nanoTime() - start) / 1e9);
    return 0;
  }
}
