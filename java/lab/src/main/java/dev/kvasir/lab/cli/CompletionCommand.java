package dev.kvasir.lab.cli;

import picocli.AutoComplete;
import picocli.CommandLine.Command;
import picocli.CommandLine.ParentCommand;
import picocli.CommandLine.Spec;
import picocli.CommandLine;

@Command(
    name = "completion",
    description = {
      "Prints what bash and zsh need to complete commands and options.",
      "Use: source <(kvasir completion)"
    },
    mixinStandardHelpOptions = true)
final class CompletionCommand implements Runnable {

  @ParentCommand private Main main;
  @Spec private CommandLine.Model.CommandSpec spec;

  @Override
  public void run() {
    main.out().print(AutoComplete.bash("kvasir", spec.root().commandLine()));
    main.out().flush();
  }
}
