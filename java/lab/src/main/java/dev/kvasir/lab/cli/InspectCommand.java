package dev.kvasir.lab.cli;

import dev.kvasir.internal.json.FileReplacement;
import dev.kvasir.Side;
import dev.kvasir.lab.inspect.ChannelStatistics;
import dev.kvasir.lab.inspect.Recording;
import dev.kvasir.lab.report.InspectReport;
import dev.kvasir.lab.report.Origin;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParentCommand;

@Command(
    name = "inspect",
    description = "Shows how wide the channels of a model's keys and values are, and draws them.",
    mixinStandardHelpOptions = true)
final class InspectCommand implements Callable<Integer> {

  @ParentCommand private Main main;
  @Mixin private TextOptions text;

  @Option(names = "--out", paramLabel = "FILE", description = "The page. Default: ${DEFAULT-VALUE}.")
  private Path target = Path.of("build/reports/kvasir/inspect.html");

  @Override
  public Integer call() throws IOException {
    text.check();
    Target.check(target);
    Recording recording = text.record(main);
    List<ChannelStatistics> all = new ArrayList<>();
    for (Side side : Side.values()) {
      for (int layer = 0; layer < recording.model().geometry().layers(); layer++) {
        for (int head = 0; head < recording.model().geometry().kvHeads(layer); head++) {
          all.add(ChannelStatistics.of(recording, layer, side, head));
        }
      }
    }
    main.out().print(InspectReport.text(all));
    Files.createDirectories(target.toAbsolutePath().getParent());
    FileReplacement.write(target, InspectReport.html(text.name(), recording.tokens(), all, Origin.now(main.command())));
    main.out().println("Report: " + target);
    return 0;
  }
}
