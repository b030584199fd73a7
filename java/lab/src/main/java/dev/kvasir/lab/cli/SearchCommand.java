package dev.kvasir.lab.cli;

import dev.kvasir.calibrate.ThresholdSearch;
import dev.kvasir.lab.evaluate.Calibrations;
import dev.kvasir.lab.evaluate.Thresholds;
import dev.kvasir.runner.Model;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.ParentCommand;
import picocli.CommandLine.Spec;

@Command(
    name = "search",
    description = {
      "Finds thresholds of MixKVQ for a model, by trials on texts for tuning, and writes the best under a limit of bits",
      "to a profile, which evaluate runs as mix-kvq-found."
    },
    mixinStandardHelpOptions = true)
final class SearchCommand implements Callable<Integer> {

  @ParentCommand private Main main;
  @Spec private CommandSpec spec;

  @Parameters(
      paramLabel = "MODEL",
      description = "A GGUF file, or a model's folder: config.json, safetensors, tokenizer.json.")
  private Path path;

  @Option(
      names = "--tuning",
      paramLabel = "DIR",
      description = "Texts (*_val.bin) to try thresholds on. Default: tests beside the model's files.")
  private @Nullable Path tuning;

  @Option(names = "--trials", paramLabel = "N", description = "Pairs that are tried. Default: ${DEFAULT-VALUE}.")
  private int trials = 30;

  @Option(
      names = "--bits",
      paramLabel = "B",
      description = "Most bits of a key's codes, on average. Default: ${DEFAULT-VALUE}.")
  private double bits = 2.7;

  @Option(names = "--backend", paramLabel = "NAME", description = "cuda runs the model on a GPU. Default: ${DEFAULT-VALUE}.")
  private Device device = Device.CPU;

  @Option(names = "--out", paramLabel = "FILE", description = "The profile. Default: ${DEFAULT-VALUE}.")
  private Path target = Path.of(Thresholds.NAME + ".profile");

  @Override
  public Integer call() throws IOException {
    Range.requirePositive(spec, "--trials", trials);
    Range.require(spec, bits >= 2 && bits <= 16, "--bits", bits, "2..16"); // NaN is neither
    Target.check(target);
    Model model = Model.load(path);
    Path folder = Files.isDirectory(path) ? path : path.toAbsolutePath().getParent();
    Calibrations calibrations =
        new Calibrations(model, Calibrations.files(TextOptions.folder("--tuning", tuning, folder.resolve("tests"))))
            .on(device.backend());
    main.out().println("trial  tau16   tau4  key bits        KL");
    ThresholdSearch.Result found = Thresholds.search(calibrations, trials, this::show);
    main.out().println("No other beats these in both bits and KL:");
    found.front().forEach(this::show);
    ThresholdSearch.Trial best =
        found
            .best(bits)
            .orElseThrow(() -> new IllegalArgumentException("no trial kept to " + bits + " bits; --trials or --bits must be more"));
    Target.save(Thresholds.profile(calibrations, best), target);
    main.out().printf(Locale.ROOT, "Best at %.2f bits or less: tau16 %.3f, tau4 %.3f%n", bits, best.tau16(), best.tau4());
    main.out().println("Profile: " + target);
    return 0;
  }

  private void show(ThresholdSearch.Trial trial) {
    main.out().printf(
        Locale.ROOT, "%5d  %5.3f  %5.3f  %8.2f  %8.5f%n", trial.number(), trial.tau16(), trial.tau4(), trial.bits(),
        -trial.score());
    main.out().flush();
  }
}
