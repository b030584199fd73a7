package dev.kvasir.lab.evaluate;

import dev.kvasir.ShrinkPolicy;
import dev.kvasir.method.Grid;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * Rows that ask what tables of the papers ask, in groups: {@code @patternkv-table4}. They run when a group is named, not with
 * all methods.
 */
final class Ablations {

  private static final String PATTERN = "PatternKV ablations";
  private static final String TIERED = "MixKVQ ablations";
  private static final String PROGRESSIVE = "PM-KVQ ablations";
  private static final String TRAINED = "CommVQ ablations";
  private static final String UNIFORM = "uniform, end to end";

  private static final Map<String, List<MethodEntry>> GROUPS = new TreeMap<>();

  static {
    GROUPS.put(
        "patternkv-table3",
        Stream.concat(
                methods("pattern-2", "pattern-2-no-value-test", "pattern-2-no-key-test", "pattern-2-no-new",
                    "pattern-2-keys-only", "pattern-2-values-only").stream(),
                thresholdsOfValues().stream())
            .toList());
    GROUPS.put("patternkv-table4", numbersOfPatterns(2, 4, 8, 16, 32, 64));
    GROUPS.put("mixkvq-table6", tiers(new int[] {32, 64, 128}, new int[] {0, 128}));
    List<MethodEntry> shifts = new ArrayList<>(methods("pm-kvq-2-equivalent", "pm-kvq-2-direct", "pm-kvq-2-modified"));
    shifts.addAll(shiftsTo4Bits());
    GROUPS.put("pmkvq-table3", shifts);
    GROUPS.put("pmkvq-policies", policies());
    GROUPS.put("pmkvq-plans", methods("pm-kvq-3", "pm-kvq-3-plan", "pm-kvq-3-measured"));
    GROUPS.put("pmkvq-scaling", methods("pm-kvq-4", "pm-kvq-4-paper", "pm-kvq-2", "pm-kvq-2-paper", "pm-kvq-2-scaled"));
    GROUPS.put("mixkvq-thresholds", thresholds());
    GROUPS.put("commvq-encoders", encoders());
    GROUPS.put("uniform-ends", endToEnd());
  }

  private Ablations() {}

  /** The names of all groups, as a list of methods has them. */
  static List<String> names() {
    return GROUPS.keySet().stream().map(name -> "@" + name).toList();
  }

  /**
   * The rows of a group.
   *
   * @param name with the sign before it; a star after it stands for all groups
   * @throws IllegalArgumentException if there is no such group
   */
  static List<MethodEntry> group(String name) {
    if (name.equals("@*")) {
      return GROUPS.values().stream().flatMap(List::stream).distinct().toList();
    }
    List<MethodEntry> rows = GROUPS.get(name.substring(1));
    if (rows == null) {
      throw new IllegalArgumentException("no group \"" + name + "\"; there are " + String.join(", ", names()));
    }
    return rows;
  }

  private static List<MethodEntry> methods(String... names) {
    return Arrays.stream(names)
        .map(name -> Methods.ALL.stream().filter(method -> method.name().equals(name)).findFirst().orElseThrow())
        .toList();
  }

  /** Every vector has the nearest pattern, as in the paper; then values without their threshold as well. */
  private static List<MethodEntry> thresholdsOfValues() {
    PatternKv paper = PatternKv.bits(2).keyTest(false).rawMatches(false);
    return List.of(
        MethodEntry.of("pattern-2-paper-matching", PATTERN, "all keys have patterns, values pass the threshold", paper),
        MethodEntry.of("pattern-2-no-threshold", PATTERN, "the same, and all values have patterns", paper.alpha(0)));
  }

  private static List<MethodEntry> numbersOfPatterns(int... counts) {
    return IntStream.of(counts)
        .mapToObj(
            count ->
                MethodEntry.of("pattern-2-of-" + count, PATTERN, count + " patterns", PatternKv.bits(2).patterns(count)))
        .toList();
  }

  private static List<MethodEntry> tiers(int[] groups, int[] windows) {
    List<MethodEntry> rows = new ArrayList<>();
    for (int group : groups) {
      rows.add(
          new MethodEntry(
              "mix-kvq-2.7-group-" + group,
              TIERED,
              "groups of " + group + " tokens, and as many channels or a head",
              request -> MethodEntry.cache(request, grouped(group, request.geometry().headDim(0)))));
    }
    rows.add(
        MethodEntry.of(
            "mix-kvq-2.7-parameters-8",
            TIERED,
            "groups of 32, parameters of keys in 8 bits",
            MixKvq.budget(2.7).keyParameterBits(8)));
    for (int window : windows) {
      rows.add(
          MethodEntry.of(
              "mix-kvq-2.7-window-" + window,
              TIERED,
              "at least " + window + " recent tokens in 16 bits",
              MixKvq.budget(2.7).window(window)));
    }
    return rows;
  }

  private static MixKvq grouped(int group, int headDim) {
    return MixKvq.budget(2.7).keyGroup(group).valueGroup(Math.min(group, headDim));
  }

  private static List<MethodEntry> shiftsTo4Bits() {
    List<MethodEntry> rows = new ArrayList<>();
    for (PmKvq.Shift shift : PmKvq.Shift.values()) {
      String name = shift.name().toLowerCase(Locale.ROOT);
      rows.add(
          new MethodEntry(
              "pm-kvq-4-" + name,
              PROGRESSIVE,
              "levels from end to end, the " + name + " shift, into a budget that ends at 4 bits",
              Budgets.of(PmKvq.floor(4).grid(Grid.ENDS).shift(shift), 4)));
      rows.add(
          new MethodEntry(
              "pm-kvq-4-" + name + "-scaled",
              PROGRESSIVE,
              "the same with scaled keys per token, as the paper asks it",
              Budgets.scaled(PmKvq.floor(4).grid(Grid.ENDS).shift(shift), 4),
              Calibrations::hasKeyScaling));
    }
    return rows;
  }

  /** The rows of Uniform that others compare with: levels from end to end, with and without exact first tokens. */
  private static List<MethodEntry> endToEnd() {
    List<MethodEntry> rows = new ArrayList<>();
    for (int bits : new int[] {4, 3, 2}) {
      Uniform method = Uniform.bits(bits).grid(Grid.ENDS);
      rows.add(MethodEntry.of("uniform-" + bits + "-ends", UNIFORM, "levels from end to end, 4 sinks", method));
      rows.add(
          MethodEntry.of("uniform-" + bits + "-no-sinks", UNIFORM, "levels from end to end, no sinks", method.sinks(0)));
    }
    return rows;
  }

  /** Thresholds that the paper found for its models, and those that a search found for this one. */
  private static List<MethodEntry> thresholds() {
    List<MethodEntry> rows = new ArrayList<>();
    for (MixKvq.PaperModel model : MixKvq.PaperModel.values()) {
      String name = model.name().toLowerCase(Locale.ROOT).replace('_', '-');
      rows.add(
          MethodEntry.of("mix-kvq-" + name, TIERED, "thresholds that the paper found for another model", MixKvq.of(model)));
    }
    rows.add(
        new MethodEntry(
            "mix-kvq-found",
            TIERED,
            "thresholds that kvasir search found for this model",
            request -> MethodEntry.cache(request, Thresholds.found(request.calibrations()).orElseThrow()),
            calibrations -> Thresholds.found(calibrations).isPresent()));
    return rows;
  }

  private static List<MethodEntry> encoders() {
    return IntStream.of(2, 1)
        .mapToObj(
            bits ->
                new MethodEntry(
                    Codebooks.encoderName(bits),
                    TRAINED,
                    "values by the trained encoder, as in the paper, instead of least squares",
                    request -> MethodEntry.cache(request, Codebooks.withEncoder(request.calibrations(), bits)),
                    calibrations -> calibrations.canLearnForLong(Codebooks.encoderName(bits))))
        .toList();
  }

  private static List<MethodEntry> policies() {
    List<MethodEntry> rows = new ArrayList<>();
    for (ShrinkPolicy policy : ShrinkPolicy.values()) {
      String name = policy.name().toLowerCase(Locale.ROOT);
      rows.add(
          new MethodEntry(
              "pm-kvq-3-" + name,
              PROGRESSIVE,
              "who shrinks first: " + name + ", into a budget that ends at 3 bits",
              Budgets.of(PmKvq.floor(2).policy(policy), 3)));
    }
    return rows;
  }
}
