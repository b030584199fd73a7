package dev.kvasir.lab.cli;

import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.Precision;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Engine;
import dev.kvasir.runner.Model;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** Which cache a model runs on. */
final class CacheOptions {

  /** What --method may be: a name, and --bits or an ending such as -4 says how many. */
  static final List<String> METHODS = List.of("f16", "uniform", "pattern", "pm-kvq", "mix-kvq");

  /** For completion. */
  static final class Methods extends ArrayList<String> {
    private static final long serialVersionUID = 1;

    Methods() {
      super(METHODS);
    }
  }

  @Option(
      names = "--method",
      paramLabel = "NAME",
      completionCandidates = Methods.class,
      description = "f16, uniform, pattern, pm-kvq or mix-kvq; uniform-4 is uniform --bits 4. Default: f16.")
  private String method = "f16";

  @Option(names = "--bits", paramLabel = "B", description = "Bits of an element. Default: 4.")
  private @Nullable Double bits;

  @Option(names = "--budget", paramLabel = "BYTES", description = "Hard limit for the cache, e.g. 64M. Default: none.")
  private @Nullable String budget;

  @Option(
      names = "--backend",
      paramLabel = "NAME",
      description = "cuda runs the model and its cache on a GPU. Default: the CPU, with the cache where it is fastest.")
  private @Nullable String backend;

  @Option(
      names = "--precision",
      paramLabel = "NAME",
      description = "On a GPU, products of activations in 16 bits or in 8: ${COMPLETION-CANDIDATES}. Default: EXACT.")
  private Precision precision = Precision.EXACT;

  @Spec(Spec.Target.MIXEE)
  private CommandSpec spec;

  /** Throws ParameterException where there is no such method, of so many bits, or no such number of bytes. */
  void check() {
    try {
      method();
    } catch (IllegalArgumentException e) {
      String asked = "--method " + method + (bits == null ? "" : " --bits " + bits);
      throw new ParameterException(spec.commandLine(), asked + ": " + e.getMessage());
    }
    try {
      bytes(budget == null ? "1" : budget);
    } catch (IllegalArgumentException e) {
      throw new ParameterException(spec.commandLine(), "--budget " + e.getMessage());
    }
  }

  /** A runner there. */
  Decoder decoder(Model model) {
    return new Decoder(model, backend == null ? "cpu" : backend, precision);
  }

  /** A cache there. */
  KvCache cache(Model model) {
    KvCache.Builder builder = KvCache.builder(model.geometry()).method(method()).precision(precision);
    if (budget != null) {
      builder.budgetBytes(bytes(budget));
    }
    return (backend == null ? builder : builder.backend(backend)).build();
  }

  /** An engine with such a cache. */
  Engine.Builder engine(Model model) {
    Engine.Builder builder = Engine.builder(model).method(method()).precision(precision);
    if (backend != null) {
      builder.backend(backend);
    }
    return budget == null ? builder : builder.budgetBytes(bytes(budget));
  }

  /** The method. */
  KvMethod method() {
    return method(method, bits);
  }

  /** A method by its name, and by its bits where the name does not end with them. */
  static KvMethod method(String text, @Nullable Double bits) {
    String name = text;
    double wanted = bits == null ? 4 : bits;
    int dash = name.lastIndexOf('-');
    if (!METHODS.contains(name) && dash > 0) {
      try {
        wanted = Double.parseDouble(name.substring(dash + 1));
        name = name.substring(0, dash);
      } catch (NumberFormatException e) {
        throw unknown(text);
      }
      if (bits != null) {
        throw new IllegalArgumentException("--bits " + bits + " beside " + text + ", which says how many itself");
      }
    }
    switch (name) {
      case "f16":
        if (bits != null && bits != 16) {
          throw new IllegalArgumentException(bits + " bits; f16 has 16");
        }
        return new HalfPrecision();
      case "uniform":
        return Uniform.bits(whole(wanted, "1, 2, 3, 4, 8 or 16"));
      case "pattern":
        return PatternKv.bits(whole(wanted, "1, 2, 3, 4 or 8"));
      case "pm-kvq":
        return PmKvq.floor(whole(wanted, "2, 4, 8 or 16"));
      case "mix-kvq":
        return MixKvq.budget(wanted);
      default:
        throw unknown(text);
    }
  }

  private static IllegalArgumentException unknown(String method) {
    return new IllegalArgumentException("no method \"" + method + "\"; there are " + String.join(", ", METHODS));
  }

  private static int whole(double bits, String allowed) {
    if (bits != (int) bits) {
      throw new IllegalArgumentException(bits + " bits, not " + allowed);
    }
    return (int) bits;
  }

  /** Bytes, as 67108864 or 64M. */
  static long bytes(String text) {
    int unit = text.isEmpty() ? 0 : "KMG".indexOf(Character.toUpperCase(text.charAt(text.length() - 1))) + 1;
    long bytes = 0;
    try {
      bytes = Math.multiplyExact(Long.parseLong(unit > 0 ? text.substring(0, text.length() - 1) : text), 1L << 10 * unit);
    } catch (NumberFormatException | ArithmeticException e) {
      // said below
    }
    if (bytes < 1) {
      throw new IllegalArgumentException("\"" + text + "\" bytes; 67108864 or 64M would be some");
    }
    return bytes;
  }
}
