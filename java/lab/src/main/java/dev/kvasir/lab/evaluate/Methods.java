package dev.kvasir.lab.evaluate;

import static dev.kvasir.lab.evaluate.MethodEntry.of;

import dev.kvasir.method.Grid;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import dev.kvasir.preset.Preset;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;

/** The methods that evaluations know: one line each. */
public final class Methods {

  /** The 16-bit cache, which all others are compared with. */
  public static final MethodEntry REFERENCE = of("f16", "16 bit", "16-bit floats, no compression", new HalfPrecision());

  private static final String UNIFORM = "uniform (KIVI)";
  private static final String PATTERN = "PatternKV";
  private static final String ABLATION = "PatternKV ablations";
  private static final String PROGRESSIVE = "PM-KVQ";
  private static final String TIERED = "MixKVQ";
  private static final String TRAINED = "CommVQ";
  private static final String SPECTRAL = "Spectral";
  private static final String PRESET = "presets";

  /** All of them, the reference first. */
  public static final List<MethodEntry> ALL =
      List.of(
          REFERENCE,
          of("uniform-8", UNIFORM, "keys per channel, values per token", Uniform.bits(8)),
          of("uniform-4", UNIFORM, "keys per channel, values per token", Uniform.bits(4)),
          of("uniform-3", UNIFORM, "keys per channel, values per token", Uniform.bits(3)),
          of("uniform-2", UNIFORM, "keys per channel, values per token", Uniform.bits(2)),
          of("uniform-1", UNIFORM, "keys per channel, values per token", Uniform.bits(1)),
          of("kivi-2", UNIFORM, "the paper's: groups of 32, levels from end to end, no sinks", Uniform.kivi(2)),
          of("pattern-4", PATTERN, "the paper's settings", PatternKv.bits(4)),
          of("pattern-2", PATTERN, "the paper's settings", PatternKv.bits(2)),
          of("pattern-2-l2", ABLATION, "matched by Euclidean distance",
              PatternKv.bits(2).metric(PatternKv.Metric.EUCLIDEAN)),
          of("pattern-2-no-key-test", ABLATION, "pages of keys have patterns whether that pays or not", PatternKv.bits(2).keyTest(false)),
          of("pattern-2-no-value-test", ABLATION, "values without a threshold: the nearest pattern, which may be none", PatternKv.bits(2).alpha(0)),
          of("pattern-2-no-new", ABLATION, "no patterns from decoded pages", PatternKv.bits(2).newPatterns(false)),
          of("pattern-2-keys-only", ABLATION, "values without patterns", PatternKv.bits(2).valuePatterns(false)),
          of("pattern-2-values-only", ABLATION, "keys without patterns", PatternKv.bits(2).keyPatterns(false)),
          budgeted("pm-kvq-4", "into a budget that ends at 4 bits", 4, PmKvq.floor(4)),
          budgeted("pm-kvq-3", "into a budget that ends at 3 bits, floors of 2", 3, PmKvq.floor(2)),
          new MethodEntry("pm-kvq-3-plan", PROGRESSIVE, "the same budget, floors by a plan from recorded gradients",
              Budgets.planned(3, calibrations -> calibrations.sensitivities().orElseThrow()),
              calibrations -> calibrations.sensitivities().isPresent()),
          new MethodEntry("pm-kvq-3-measured", PROGRESSIVE, "the same, by a plan from what coding each layer costs",
              Budgets.planned(3, Calibrations::losses), Calibrations::hasLosses),
          budgeted("pm-kvq-2", "into a budget that ends at 2 bits", 2, PmKvq.floor(2)),
          budgeted("pm-kvq-2-equivalent", "the same, levels from end to end, as the paper shrinks them", 2,
              PmKvq.floor(2).grid(Grid.ENDS)),
          budgeted("pm-kvq-2-direct", "levels from end to end, codes cut off", 2, PmKvq.floor(2).grid(Grid.ENDS).shift(PmKvq.Shift.DIRECT)),
          budgeted("pm-kvq-2-modified", "levels from end to end, codes cut off, parameters moved", 2,
              PmKvq.floor(2).grid(Grid.ENDS).shift(PmKvq.Shift.MODIFIED)),
          scaled("pm-kvq-4-paper", "as the paper has it: keys scaled, per token, end to end, whole layers shrink", 4, PmKvq.paper(4)),
          scaled("pm-kvq-2-paper", "the same at 2 bits", 2, PmKvq.paper(2)),
          scaled("pm-kvq-2-scaled", "pm-kvq-2 with scaled keys, per token", 2, PmKvq.floor(2)),
          of("pm-kvq-2-immediate", PROGRESSIVE, "2 bits from the start", PmKvq.floor(2).startBits(2)),
          of("mix-kvq-3.4", TIERED, "3.4 bits a key, 2 a value", MixKvq.budget(3.4)),
          of("mix-kvq-2.7", TIERED, "2.7 bits a key, 2 a value", MixKvq.budget(2.7)),
          of("mix-kvq-2.3", TIERED, "2.3 bits a key, 2 a value", MixKvq.budget(2.3)),
          of("mix-kvq-2.7-error-only", TIERED, "the same bits, without a look at queries",
              MixKvq.budget(2.7).queryAware(false)),
          trained("comm-vq-2", 2),
          trained("comm-vq-1", 1),
          spectral(3),
          spectral(2.5),
          spectral(2),
          spectral(1.5),
          spectral(1),
          preset(Preset.NEAR_LOSSLESS),
          preset(Preset.BALANCED),
          preset(Preset.SMALLEST));

  private Methods() {}

  private static MethodEntry budgeted(String name, String about, double bits, PmKvq method) {
    return new MethodEntry(name, PROGRESSIVE, about, Budgets.of(method, bits));
  }

  private static MethodEntry scaled(String name, String about, double bits, PmKvq method) {
    return new MethodEntry(name, PROGRESSIVE, about, Budgets.scaled(method, bits), Calibrations::hasKeyScaling);
  }

  private static MethodEntry trained(String name, int bits) {
    return new MethodEntry(
        name,
        TRAINED,
        "codebooks trained on what is there for tuning, " + bits + (bits == 1 ? " bit" : " bits"),
        request -> MethodEntry.cache(request, Codebooks.commVq(request.calibrations(), bits)));
  }

  private static MethodEntry spectral(double bits) {
    return new MethodEntry(
        Spectra.NAME + "-" + number(bits),
        SPECTRAL,
        "calibrated on what is there for tuning, " + number(bits) + " code bits on average",
        request -> MethodEntry.cache(request, Spectra.method(request.calibrations(), bits)));
  }

  private static MethodEntry preset(Preset preset) {
    return new MethodEntry(
        preset.name().toLowerCase(Locale.ROOT).replace('_', '-'),
        PRESET,
        "the preset: Spectral, " + number(preset.codeBits()) + " code bits on average",
        request -> MethodEntry.cache(request, Spectra.method(request.calibrations(), preset.codeBits())));
  }

  private static String number(double bits) {
    return bits == (int) bits ? String.valueOf((int) bits) : String.valueOf(bits);
  }

  /**
   * The methods that a comma-separated list names, in the order of {@link #ALL} and with the reference first; after them
   * those of groups. A star stands for anything, a name after an at sign for the rows of a paper's table: {@code
   * uniform-*,pattern-2,@patternkv-table4}, and {@code @*} for all of those.
   *
   * @throws IllegalArgumentException if a name fits no method
   */
  public static List<MethodEntry> named(String list) {
    Set<MethodEntry> wanted = new LinkedHashSet<>();
    wanted.add(REFERENCE);
    for (String name : list.split(",")) {
      wanted.addAll(name.strip().startsWith("@") ? Ablations.group(name.strip()) : matching(name));
    }
    Set<MethodEntry> ordered = new LinkedHashSet<>(ALL);
    ordered.retainAll(wanted);
    ordered.addAll(wanted);
    return List.copyOf(ordered);
  }

  private static List<MethodEntry> matching(String name) {
    String expression = name.strip().replaceAll("[^A-Za-z0-9.*-]", "").replace(".", "\\.").replace("*", ".*");
    List<MethodEntry> found = ALL.stream().filter(entry -> entry.name().matches(expression)).toList();
    if (found.isEmpty()) {
      throw new IllegalArgumentException(
          "no method \"" + name + "\"; there are " + String.join(", ", ALL.stream().map(MethodEntry::name).toList())
              + ", and groups: " + String.join(", ", Ablations.names()));
    }
    return found;
  }
}
