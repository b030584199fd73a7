package dev.kvasir.lab.cli;

import dev.kvasir.calibrate.Profile;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.lab.evaluate.Calibrations;
import dev.kvasir.lab.evaluate.Codebooks;
import dev.kvasir.lab.evaluate.ProgressBar;
import dev.kvasir.lab.evaluate.Spectra;
import dev.kvasir.runner.Model;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** What a method learns from, and how. */
final class LearningOptions {

  @Option(
      names = "--tuning",
      paramLabel = "DIR",
      description =
          "Texts (*_val.bin) and, for codebooks, tasks (*_val.jsonl) to learn from. Default: tests beside the model's files.")
  private @Nullable Path tuning;

  @Option(
      names = "--alike",
      description = "spectral: the same bits for all layers, without measuring what each loses, which takes longest.")
  private boolean alike;

  @Option(
      names = "--backend",
      paramLabel = "NAME",
      description = "spectral: cuda lets the model read on a GPU. Default: ${DEFAULT-VALUE}.")
  private Device device = Device.CPU;

  @Option(
      names = "--steps",
      paramLabel = "N",
      description = "comm-vq: steps of training a codebook of keys; the paper takes 100. Default: ${DEFAULT-VALUE}.")
  private int steps = 25;

  @Spec(Spec.Target.MIXEE)
  private CommandSpec spec;

  /** Throws ParameterException where a number is none that can be meant. */
  void check() {
    Range.require(spec, steps >= 1 && steps <= 10_000, "--steps", steps, "1..10000");
  }

  /** Writes the profile of a method, by default to a file of its name; spectral says how far it is. */
  void learn(Main main, Path path, String method, @Nullable Path target) throws IOException {
    Path file = target == null ? Path.of(method + ".profile") : target;
    Target.check(file);
    Model model = Model.load(path);
    Calibrations calibrations = calibrations(model, path);
    long start = System.nanoTime();
    Profile.Builder profile =
        method.equals(Spectra.NAME)
            ? Spectra.calibrate(calibrations, alike, line -> say(main, start, line)).toBuilder()
            : Profile.builder(model.geometry()).codebooks(train(main, calibrations, method));
    Target.save(profile.note("method", method).build(), file);
    main.out().printf(Locale.ROOT, "Profile: %s, after %.0f s%n", file, (System.nanoTime() - start) / 1e9);
  }

  private static CommVqCodebooks train(Main main, Calibrations calibrations, String method) {
    ProgressBar bar = main.progress();
    bar.show(0, 1, "reads what there is to learn from");
    CommVqCodebooks codebooks =
        Codebooks.train(calibrations, method, (layers, all) -> bar.show(layers, all, layers + " of " + all + " layers"));
    bar.end();
    return codebooks;
  }

  /** What there is to learn from. */
  Calibrations calibrations(Model model, Path path) throws IOException {
    Path folder = Files.isDirectory(path) ? path : path.toAbsolutePath().getParent();
    Path from = TextOptions.folder("--tuning", tuning, folder.resolve("tests"));
    return new Calibrations(model, Calibrations.files(from)).on(device.backend()).keySteps(steps);
  }

  private static void say(Main main, long start, String line) {
    main.out().printf(Locale.ROOT, "%5.0f s  %s%n", (System.nanoTime() - start) / 1e9, line);
    main.out().flush();
  }
}
