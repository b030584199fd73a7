package dev.kvasir.lab.cli;

import dev.kvasir.KvEstimate;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.runner.Model;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.ParentCommand;
import picocli.CommandLine.Spec;

@Command(
    name = "size",
    description = {
      "How much memory the cache of a model takes: what a cache would count, to the byte, without making one.",
      "Where pages vary or give up precision under a budget, the least that they can come to stands behind it."
    },
    mixinStandardHelpOptions = true)
final class SizeCommand implements Callable<Integer> {

  private static final List<String> USUAL =
      List.of("f16", "uniform-8", "uniform-4", "uniform-2", "uniform-1", "pattern-2", "pm-kvq-2", "mix-kvq-2.7");

  /** Names of models, for completion. */
  static final class Names implements Iterable<String> {
    @Override
    public Iterator<String> iterator() {
      return KnownModels.names().iterator();
    }
  }

  @ParentCommand private Main main;
  @Spec private CommandSpec spec;

  @Option(
      names = "--model",
      paramLabel = "NAME",
      completionCandidates = Names.class,
      description = "A well-known model, a GGUF file, or a model's folder. --list has the names.")
  private @Nullable String model;

  @Option(names = "--context", paramLabel = "N", description = "Tokens of a sequence. Default: ${DEFAULT-VALUE}.")
  private long context = 8192;

  @Option(
      names = "--written",
      paramLabel = "N",
      description = "Of them, those that the model wrote itself, one by one. Default: ${DEFAULT-VALUE}.")
  private long written = 1;

  @Option(names = "--sequences", paramLabel = "N", description = "How many of them. Default: ${DEFAULT-VALUE}.")
  private long sequences = 1;

  @Option(
      names = "--method",
      paramLabel = "NAME",
      split = ",",
      description = "Methods, as uniform-4 or mix-kvq-2.7. Default: one of each kind.")
  private List<String> methods = USUAL;

  @Option(
      names = "--memory",
      paramLabel = "BYTES",
      description = "Also says how many such sequences fit, e.g. into 24G.")
  private @Nullable String memory;

  @Option(names = "--list", description = "Lists the models that are known by name.")
  private boolean list;

  @Override
  public Integer call() throws IOException {
    if (list) {
      KnownModels.names().forEach(name -> main.out().println(name));
      return 0;
    }
    if (model == null) {
      throw new ParameterException(spec.commandLine(), "Missing required option: '--model=NAME'");
    }
    if (context < 1 || written < 0 || written > context || sequences < 1) {
      throw new ParameterException(
          spec.commandLine(), "--context and --sequences must be 1 or more, --written 0 to --context");
    }
    long room;
    Map<String, KvMethod> wanted = new LinkedHashMap<>();
    try {
      room = memory == null ? 0 : CacheOptions.bytes(memory);
      methods.forEach(name -> wanted.put(name, CacheOptions.method(name, null)));
    } catch (IllegalArgumentException e) {
      throw new ParameterException(spec.commandLine(), e.getMessage());
    }
    return print(geometry(model), wanted, room) ? 0 : 1;
  }

  private KvGeometry geometry(String name) throws IOException {
    if (KnownModels.find(name).isPresent()) {
      return KnownModels.find(name).get();
    }
    if (Files.exists(Path.of(name))) {
      return Model.load(Path.of(name)).geometry();
    }
    throw new ParameterException(
        spec.commandLine(),
        "there is no file " + name + ", and no model is known by that name; the nearest: "
            + String.join(", ", Nearest.to(name, KnownModels.names())));
  }

  /** Whether there was anything to print of one of them. */
  private boolean print(KvGeometry geometry, Map<String, KvMethod> methods, long room) {
    main.out().printf(Locale.ROOT, "%s: %d layers, %d sequences of %d tokens%n%n", model, geometry.layers(), sequences, context);
    main.out().printf("%-12s %15s %10s %10s %9s %9s %9s%s%n", "method", "bytes", "", "at least", "pages", "window",
        "tables", room == 0 ? "  bits" : "  bits     fit");
    boolean any = false;
    for (Map.Entry<String, KvMethod> method : methods.entrySet()) {
      String name = method.getKey();
      KvEstimate estimate;
      try {
        estimate = KvEstimate.of(geometry, method.getValue(), context - written, written, sequences);
      } catch (IllegalArgumentException e) {
        main.out().printf("%-12s not for this model: %s%n", name, e.getMessage());
        continue;
      }
      any = true;
      KvEstimate.Layer all = estimate.total();
      main.out().printf(Locale.ROOT, "%-12s %15d %10s %10s %9s %9s %9s %5.2f", name, all.bytes(), human(all.bytes()),
          all.leastBytes() == all.bytes() ? "" : human(all.leastBytes()), human(all.pageBytes()),
          human(all.windowBytes()), all.tableBytes() == 0 ? "" : human(all.tableBytes()), all.bitsPerElement());
      main.out().println(room == 0 ? "" : String.format(Locale.ROOT, "%8d", room / (all.bytes() / sequences)));
    }
    main.out().flush();
    return any;
  }

  /** For people: 4.00 GiB. */
  private static String human(long bytes) {
    double amount = bytes;
    String[] units = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; amount >= 1024 && unit < units.length - 1; unit++) {
      amount /= 1024;
    }
    return String.format(Locale.ROOT, unit == 0 ? "%.0f %s" : amount < 100 ? "%.2f %s" : "%.0f %s", amount, units[unit]);
  }
}
