package dev.kvasir.lab.cli;

import dev.kvasir.calibrate.Profile;
import dev.kvasir.lab.evaluate.Calibrations;
import dev.kvasir.lab.evaluate.Codebooks;
import dev.kvasir.lab.evaluate.Spectra;
import dev.kvasir.runner.Model;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
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
      description = "What they are for: spectral, balanced, smallest, comm-vq-1 or comm-vq-2.")
  private String method;

  @Option(
      names = "--tuning",
      paramLabel = "DIR",
      description = "Texts (*_val.bin) and tasks (*_val.jsonl) to learn from. Default: tests beside the model's files.")
  private @Nullable Path tuning;

  @Option(
      names = "--alike",
      description = "spectral: the same bits for all layers, without measuring what each loses, which takes longest.")
  private boolean alike;

  @Option(
      names = "--backend",
      paramLabel = "NAME",
      description = "spectral: cuda lets the model read on a GPU. Default: ${DEFAULT-VALUE}.")
  private String backend = "cpu";

  @Option(names = "--out", paramLabel = "FILE", description = "The profile. Default: NAME.profile.")
  private @Nullable Path target;

  @Override
  public Integer call() throws IOException {
    if (!methods().contains(method)) {
      throw new CommandLine.ParameterException(
          spec.commandLine(), "--method " + method + " is none of " + String.join(", ", methods()));
    }
    train(main, path, method, tuning, alike, backend, target);
    return 0;
  }

  /** Writes the profile of a method; spectral says how far it is. */
  static void train(
      Main main,
      Path path,
      String method,
      @Nullable Path tuning,
      boolean alike,
      String backend,
      @Nullable Path target)
      throws IOException {
    Model model = Model.load(path);
    Path folder = Files.isDirectory(path) ? path : path.toAbsolutePath().getParent();
    Calibrations calibrations =
        new Calibrations(model, Calibrations.files(tuning == null ? folder.resolve("tests") : tuning)).on(backend);
    long start = System.nanoTime();
    Profile.Builder profile =
        method.equals(Spectra.NAME)
            ? Spectra.calibrate(calibrations, alike, line -> say(main, start, line)).toBuilder()
            : Profile.builder(model.geometry()).codebooks(Codebooks.train(calibrations, method));
    Path file = target == null ? Path.of(method + ".profile") : target;
    profile.note("method", method).build().save(file);
    main.out().printf(Locale.ROOT, "Profile: %s, after %.0f s%n", file, (System.nanoTime() - start) / 1e9);
  }

  private static List<String> methods() {
    return Stream.concat(Codebooks.methods().stream(), Stream.of(Spectra.NAME)).toList();
  }

  private static void say(Main main, long start, String line) {
    main.out().printf(Locale.ROOT, "%5.0f s  %s%n", (System.nanoTime() - start) / 1e9, line);
    main.out().flush();
  }
}
