package dev.kvasir.lab.cli;

import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.ParameterException;

/** What numbers of options may be: looked at before a command reads anything, so that nobody waits to be refused. */
final class Range {

  private Range() {}

  /** Throws ParameterException that names the option, its value and what it may be. */
  static void require(CommandSpec command, boolean good, String option, Object value, String allowed) {
    if (!good) {
      throw new ParameterException(command.commandLine(), option + " is " + value + ", not " + allowed);
    }
  }

  /** The same for numbers from 1 on. */
  static void requirePositive(CommandSpec command, String option, long value) {
    require(command, value >= 1, option, value, "1 or more");
  }
}
