package dev.kvasir.calibrate;

import dev.kvasir.calibrate.KnapsackGroup.Option;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Decides whether any plan loses less than a known one: a dynamic program over partial plans. Of two partial plans over
 * the same groups the one that costs and loses more is dropped, and so is one whose best completion, by the price
 * bound, could not win.
 */
final class KnapsackProof {

  /** Partial plans, of all stages together, before giving up: about a hundred megabytes. Real plans need thousands. */
  private static final int MOST_STATES = 2_000_000;

  /** A choice for the first groups. */
  private static final class State {
    final @Nullable State before;
    final @Nullable Option option;
    final long cost;
    final double loss;

    State(@Nullable State before, @Nullable Option option, long cost, double loss) {
      this.before = before;
      this.option = option;
      this.cost = cost;
      this.loss = loss;
    }
  }

  private final List<List<Option>> groups;
  private final long budget;
  private final double price;
  /** By group: the least that it and all after it add to loss + price * cost. */
  private final double[] rest;

  KnapsackProof(List<List<Option>> groups, long budget, double price) {
    this.groups = groups;
    this.budget = budget;
    this.price = price;
    this.rest = new double[groups.size() + 1];
    for (int i = groups.size() - 1; i >= 0; i--) {
      rest[i] = rest[i + 1] + groups.get(i).stream().mapToDouble(this::priced).min().orElseThrow();
    }
  }

  /**
   * The best plan that loses less than {@code limit}; an empty list if there is none, and then that is proven; null if
   * the question is too large.
   */
  @Nullable List<Option> below(double limit) {
    List<State> states = List.of(new State(null, null, 0, 0));
    long kept = 0;
    for (int i = 0; i < groups.size(); i++) {
      List<State> next = new ArrayList<>();
      for (Option option : groups.get(i)) {
        next = merge(next, extend(states, option, i + 1, limit));
        if (kept + next.size() > MOST_STATES) {
          return null;
        }
      }
      states = next;
      kept += next.size();
    }
    // Losses fall as costs rise, so the last state loses least.
    return states.isEmpty() ? List.of() : options(states.get(states.size() - 1));
  }

  /** The states, in order of cost, with one more option, as far as they may still win. */
  private List<State> extend(List<State> states, Option option, int done, double limit) {
    List<State> result = new ArrayList<>();
    for (State state : states) {
      long cost = state.cost + option.cost();
      double loss = state.loss + option.loss();
      if (cost <= budget && loss < limit && loss + rest[done] - price * (budget - cost) < limit) {
        result.add(new State(state, option, cost, loss));
      }
    }
    return result;
  }

  /** Both lists in order of cost, without states that cost and lose as much as another. */
  private static List<State> merge(List<State> a, List<State> b) {
    List<State> result = new ArrayList<>(a.size() + b.size());
    int i = 0;
    int j = 0;
    while (i < a.size() || j < b.size()) {
      boolean first = j == b.size() || i < a.size() && comesFirst(a.get(i), b.get(j));
      State next = first ? a.get(i++) : b.get(j++);
      if (result.isEmpty() || next.loss < result.get(result.size() - 1).loss) {
        result.add(next);
      }
    }
    return result;
  }

  private static boolean comesFirst(State a, State b) {
    return a.cost != b.cost ? a.cost < b.cost : a.loss <= b.loss;
  }

  private static List<Option> options(State last) {
    List<Option> options = new ArrayList<>();
    for (State state = last; state != null && state.option != null; state = state.before) {
      options.add(state.option);
    }
    Collections.reverse(options);
    return options;
  }

  private double priced(Option option) {
    return option.loss() + price * option.cost();
  }
}
