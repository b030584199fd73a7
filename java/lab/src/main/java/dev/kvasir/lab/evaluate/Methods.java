package dev.kvasir.lab.evaluate;

import static dev.kvasir.lab.evaluate.MethodEntry.of;

import dev.kvasir.HalfPrecision;
import dev.kvasir.PatternKv;
import dev.kvasir.Uniform;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/** The methods that evaluations know: one line each. */
public final class Methods {

  /** The 16-bit cache, which all others are compared with. */
  public static final MethodEntry REFERENCE = of("f16", "16 bit", "16-bit floats, no compression", new HalfPrecision());

  private static final String UNIFORM = "uniform (KIVI)";
  private static final String PATTERN = "PatternKV";
  private static final String ABLATION = "PatternKV ablations";

  /** All of them, the reference first. */
  public static final List<MethodEntry> ALL =
      List.of(
          REFERENCE,
          of("uniform-8", UNIFORM, "keys per channel, values per token", Uniform.bits(8)),
          of("uniform-4", UNIFORM, "keys per channel, values per token", Uniform.bits(4)),
          of("uniform-3", UNIFORM, "keys per channel, values per token", Uniform.bits(3)),
          of("uniform-2", UNIFORM, "keys per channel, values per token", Uniform.bits(2)),
          of("uniform-1", UNIFORM, "keys per channel, values per token", Uniform.bits(1)),
          of("pattern-4", PATTERN, "the paper's settings", PatternKv.bits(4)),
          of("pattern-2", PATTERN, "the paper's settings", PatternKv.bits(2)),
          of("pattern-2-l2", ABLATION, "matched by Euclidean distance",
              PatternKv.bits(2).metric(PatternKv.Metric.EUCLIDEAN)),
          of("pattern-2-no-key-test", ABLATION, "keys always use patterns", PatternKv.bits(2).keyTest(false)),
          of("pattern-2-no-value-test", ABLATION, "values always use patterns", PatternKv.bits(2).alpha(0)),
          of("pattern-2-no-new", ABLATION, "no patterns from decoded pages", PatternKv.bits(2).newPatterns(false)),
          of("pattern-2-keys-only", ABLATION, "values without patterns", PatternKv.bits(2).valuePatterns(false)),
          of("pattern-2-values-only", ABLATION, "keys without patterns", PatternKv.bits(2).keyPatterns(false)));

  private Methods() {}

  /**
   * The methods that a comma-separated list names, in the order of {@link #ALL} and with the reference first. A star
   * stands for anything: {@code uniform-*,pattern-2}.
   *
   * @throws IllegalArgumentException if a name fits no method
   */
  public static List<MethodEntry> named(String list) {
    Set<MethodEntry> wanted = new LinkedHashSet<>();
    wanted.add(REFERENCE);
    for (String name : list.split(",")) {
      String expression = name.strip().replaceAll("[^A-Za-z0-9*-]", "").replace("*", ".*");
      List<MethodEntry> found = ALL.stream().filter(entry -> entry.name().matches(expression)).toList();
      if (found.isEmpty()) {
        throw new IllegalArgumentException(
            "no method \"" + name + "\"; there are " + String.join(", ", ALL.stream().map(MethodEntry::name).toList()));
      }
      wanted.addAll(found);
    }
    List<MethodEntry> ordered = new ArrayList<>(ALL);
    ordered.retainAll(wanted);
    return ordered;
  }
}
