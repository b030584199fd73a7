package dev.kvasir.lab.cli;

import dev.kvasir.runner.Sampling;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** How tokens are chosen. */
final class SamplingOptions {

  @Option(names = "--tokens", paramLabel = "N", description = "Most tokens to write. Default: ${DEFAULT-VALUE}.")
  int tokens = 64;

  @Option(names = "--temperature", paramLabel = "T", description = "0 takes the likeliest. Default: ${DEFAULT-VALUE}.")
  private double temperature;

  @Option(names = "--top-k", paramLabel = "K", description = "Only so many of the likeliest; 0: all.")
  private int topK;

  @Option(names = "--top-p", paramLabel = "P", description = "Only the likeliest that reach this probability.")
  private double topP = 1;

  @Option(names = "--min-p", paramLabel = "P", description = "Only those at least so likely, relative to the likeliest.")
  private double minP;

  @Option(names = "--repetition-penalty", paramLabel = "R", description = "Above 1, the latest 64 tokens become unlikely.")
  private double penalty = 1;

  @Option(names = "--seed", paramLabel = "N", description = "Of the draws. Default: ${DEFAULT-VALUE}.")
  private long seed;

  @Spec(Spec.Target.MIXEE)
  private CommandSpec spec;

  /** Throws ParameterException where a number is none that can be meant. */
  void check() {
    Range.requirePositive(spec, "--tokens", tokens);
    Range.require(spec, temperature >= 0 && temperature <= 100, "--temperature", temperature, "0..100");
    Range.require(spec, topK >= 0, "--top-k", topK, "0 or more");
    Range.require(spec, topP > 0 && topP <= 1, "--top-p", topP, "above 0, up to 1");
    Range.require(spec, minP >= 0 && minP <= 1, "--min-p", minP, "0..1");
    Range.require(spec, penalty >= 0.01 && penalty <= 100, "--repetition-penalty", penalty, "0.01..100");
  }

  Sampling sampling() {
    return new Sampling(temperature, topK, topP, minP, penalty, 64, seed);
  }
}
