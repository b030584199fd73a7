package dev.kvasir.lab.cli;

import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.calibrate.BitAllocator;
import dev.kvasir.calibrate.BitPlan;
import dev.kvasir.calibrate.PageCost;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.calibrate.Sensitivities;
import java.io.IOException;
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
    name = "allocate",
    description = "Gives each layer the bits that hurt least within an average, and writes the plan to the profile.",
    mixinStandardHelpOptions = true)
final class AllocateCommand implements Callable<Integer> {

  @ParentCommand private Main main;
  @Spec private CommandSpec spec;

  @Parameters(paramLabel = "PROFILE", description = "A profile with sensitivities.")
  private Path source;

  @Option(
      names = "--bits",
      required = true,
      paramLabel = "B",
      description = "Average bits per element that pages may take, parameters included.")
  private double bits;

  @Option(names = "--widths", paramLabel = "N", split = ",", description = "Widths to choose from. Default: 2,4,8.")
  private int[] widths = {2, 4, 8};

  @Option(names = "--separate", description = "Keys and values of a layer may differ.")
  private boolean separate;

  @Option(names = "--out", paramLabel = "FILE", description = "Where to write. Default: PROFILE itself.")
  private @Nullable Path target;

  @Override
  public Integer call() throws IOException {
    Range.require(spec, bits > 0 && bits < Double.POSITIVE_INFINITY, "--bits", bits, "above 0");
    for (int width : widths) {
      Range.require(spec, width >= 1 && width <= 16, "--widths", width, "1..16");
    }
    Profile profile = Profile.load(source);
    Path file = target == null ? source : target;
    Target.check(file);
    KvGeometry geometry = profile.geometry();
    Sensitivities sensitivities =
        profile
            .sensitivities()
            .orElseThrow(
                () -> new IllegalArgumentException(source + " has no sensitivities: calibrate with --tensors first"));
    BitPlan plan =
        BitAllocator.of(geometry, sensitivities, PageCost.perToken(geometry))
            .widths(widths)
            .separateSides(separate)
            .averageBits(bits)
            .solve();
    main.out().println("layer  keys  values");
    for (int layer = 0; layer < plan.layers(); layer++) {
      main.out().printf(Locale.ROOT, "%5d %5d %7d%n", layer, plan.bits(layer, Side.KEYS), plan.bits(layer, Side.VALUES));
    }
    main.out().printf(Locale.ROOT, "sensitivity %.4g, %s%n", plan.objective(), plan.optimal() ? "proven optimal" : "not proven");
    Target.save(profile.toBuilder().plan(plan).build(), file);
    main.out().println("Profile: " + file);
    return 0;
  }
}
