package dev.kvasir.calibrate;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/** Options of which exactly one is taken. */
final class KnapsackGroup {

  /** A choice: what it costs and what it loses. */
  record Option(int label, long cost, double loss) {}

  private final List<Option> options = new ArrayList<>();

  void add(int label, long cost, double loss) {
    options.add(new Option(label, cost, loss));
  }

  double largestLoss() {
    return options.stream().mapToDouble(Option::loss).max().orElse(0);
  }

  /** The same with losses times 2^exponent. */
  KnapsackGroup scaled(int exponent) {
    KnapsackGroup result = new KnapsackGroup();
    options.forEach(option -> result.add(option.label, option.cost, Math.scalb(option.loss, exponent)));
    return result;
  }

  /** The option with a label. */
  Option of(int label) {
    return options.stream().filter(option -> option.label == label).findFirst().orElseThrow();
  }

  boolean isEmpty() {
    return options.isEmpty();
  }

  /** The options that an optimum can hold: costs rise and losses fall, strictly. Ties go to the cheaper option. */
  List<Option> useful() {
    List<Option> sorted = new ArrayList<>(options);
    sorted.sort(Comparator.comparingLong(Option::cost).thenComparingDouble(Option::loss));
    List<Option> result = new ArrayList<>();
    for (Option option : sorted) {
      if (result.isEmpty() || option.loss < result.get(result.size() - 1).loss) {
        result.add(option);
      }
    }
    return result;
  }
}
