package dev.kvasir.lab.cli;

import dev.kvasir.KvGeometry;
import dev.kvasir.calibrate.CalibrationTensors;
import dev.kvasir.calibrate.KeyScaling;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.calibrate.Sensitivities;
import dev.kvasir.lab.evaluate.Calibrations;
import dev.kvasir.lab.evaluate.LayerLosses;
import dev.kvasir.lab.evaluate.ProgressBar;
import dev.kvasir.lab.evaluate.Spectra;
import dev.kvasir.lab.inspect.Recording;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParentCommand;
import picocli.CommandLine.Spec;
import picocli.CommandLine;

@Command(
    name = "calibrate",
    description = {
      "Finds key scaling for a model from a text that it reads; writes a profile.",
      "Given recorded tensors with gradients, also the sensitivities of its layers; or the bases of Spectral and the",
      "bits of layers, as train does."
    },
    mixinStandardHelpOptions = true)
final class CalibrateCommand implements Callable<Integer> {

  @ParentCommand private Main main;
  @Mixin private TextOptions text;
  @Mixin private LearningOptions learning;

  @Spec private CommandLine.Model.CommandSpec spec;

  @Option(
      names = "--method",
      paramLabel = "NAME",
      description = "spectral: its bases and bits, from all of --tuning. Default: key scaling, from --text.")
  private @Nullable String method;

  @Option(
      names = "--out",
      paramLabel = "FILE",
      description = "The profile. Default: kvasir.profile, or that of the method's name.")
  private @Nullable Path target;

  @Option(names = "--queries", paramLabel = "N", description = "Newest tokens that ask. Default: ${DEFAULT-VALUE}.")
  private int queries = 128;

  @Option(names = "--bits", paramLabel = "N", description = "Width to scale keys for. Default: ${DEFAULT-VALUE}.")
  private int bits = 4;

  @Option(
      names = "--tensors",
      paramLabel = "FILE",
      split = ",",
      description = "Safetensors with keys, values and gradients of one text, heads first.")
  private List<Path> tensors = List.of();

  @Option(
      names = "--losses",
      description = {
        "Measures what coding each layer costs predictions, on --tuning, in place of sensitivities from gradients.",
        "As pm-kvq.profile beside the model it is what evaluate plans pm-kvq-3-measured by."
      })
  private boolean losses;

  @Override
  public Integer call() throws IOException {
    Range.require(spec, bits >= 1 && bits <= 16, "--bits", bits, "1..16");
    Range.requirePositive(spec, "--queries", queries);
    text.check();
    learning.check();
    if (method != null) {
      if (!method.equals(Spectra.NAME)) {
        throw new CommandLine.ParameterException(
            spec.commandLine(), "--method " + method + " is not " + Spectra.NAME + "; others have train");
      }
      learning.learn(main, text.path(), method, target);
      return 0;
    }
    Path file = target == null ? Path.of("kvasir.profile") : target;
    Target.check(file);
    Recording recording = text.record(main);
    KvGeometry geometry = recording.model().geometry();
    KeyScaling.Options options = KeyScaling.Options.of(recording.model().config().rope()).bits(bits);
    ProgressBar bar = main.progress();
    KeyScaling scaling =
        KeyScaling.calibrate(
            geometry,
            options,
            layer -> {
              bar.show(layer, geometry.layers(), "layer " + layer);
              return List.of(recording.sample(layer).lastQueries(queries));
            });
    bar.end();
    Profile.Builder profile = Profile.builder(geometry).keyScaling(scaling).note("model", text.name());
    for (int layer = 0; layer < geometry.layers(); layer++) {
      double[] errors = scaling.errors(layer);
      double best = Arrays.stream(errors).min().orElse(0);
      main.out().printf(Locale.ROOT, "layer %d: alpha %.2f, error %.3e, %.3e without scaling%n", layer,
          scaling.alpha(layer), best, errors[0]);
    }
    if (!tensors.isEmpty()) {
      try (CalibrationTensors files =
          CalibrationTensors.open(
              geometry, CalibrationTensors.Layout.HEADS_FIRST, tensors.toArray(Path[]::new))) {
        profile.sensitivities(Sensitivities.accumulator(geometry).keyScaling(scaling).add(files).result());
        main.out().println("Sensitivities of " + geometry.layers() + " layers.");
      }
    }
    if (losses) {
      Calibrations calibrations = learning.calibrations(recording.model(), text.path());
      profile.sensitivities(LayerLosses.measure(calibrations, main.out()::println));
    }
    Target.save(profile.build(), file);
    main.out().println("Profile: " + file);
    return 0;
  }
}
