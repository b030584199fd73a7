package dev.kvasir.lab.cli;

import dev.kvasir.lab.LayerBench;
import java.util.concurrent.Callable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParentCommand;
import picocli.CommandLine.Spec;
import picocli.CommandLine;

@Command(
    name = "bench",
    description =
        "Memory, speed and error of one attention layer by every method that needs no training, and by Spectral, on"
            + " synthetic tokens.",
    mixinStandardHelpOptions = true)
final class BenchCommand implements Callable<Integer> {

  @ParentCommand private Main main;
  @Spec private CommandLine.Model.CommandSpec spec;

  @Option(names = "--tokens", paramLabel = "N", description = "Length of the sequence. Default: ${DEFAULT-VALUE}.")
  private int tokens = 32 * 1024;

  @Option(names = "--seconds", paramLabel = "S", description = "How long to measure. Default: ${DEFAULT-VALUE}.")
  private double seconds = 8;

  @Override
  public Integer call() {
    Range.requirePositive(spec, "--tokens", tokens);
    Range.require(spec, seconds >= 0 && seconds < Double.POSITIVE_INFINITY, "--seconds", seconds, "0 or more");
    LayerBench.run(main.out(), tokens, seconds);
    return 0;
  }
}
