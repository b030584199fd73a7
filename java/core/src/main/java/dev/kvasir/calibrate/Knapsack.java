package dev.kvasir.calibrate;

import dev.kvasir.calibrate.KnapsackGroup.Option;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import org.ojalgo.optimisation.Expression;
import org.ojalgo.optimisation.ExpressionsBasedModel;
import org.ojalgo.optimisation.Optimisation;
import org.ojalgo.optimisation.Variable;
import org.ojalgo.optimisation.integer.IntegerStrategy;
import org.ojalgo.type.context.NumberContext;

/**
 * The multiple-choice knapsack problem: one option of each group, least total loss, total cost within a budget.
 *
 * <p>A price per byte turns it into independent choices, which gives a lower bound on the loss; stepping from choice to
 * choice gives a feasible plan. Options that the gap between the two rules out are dropped, and ojAlgo solves what is
 * left as an integer program.
 *
 * <p>ojAlgo's answer is a proposal. It is checked in exact arithmetic on costs, and what it calls optimal is not always
 * (version 57.1.0: about one in a hundred small problems, with losses up to some percent too high). So a plan counts as
 * optimal only where {@link KnapsackProof} says so.
 */
final class Knapsack {

  /** One option of each group; whether it is known that there is no better one. */
  record Solution(List<Option> options, boolean optimal) {

    double loss() {
      return Knapsack.loss(options);
    }

    long cost() {
      return Knapsack.cost(options);
    }
  }

  /** Slack for sums of doubles, relative to the total loss: an option is dropped only if it is worse by more. */
  private static final double ROUNDING = 1e-12;
  /** Trying all pairs of groups pays up to here; beyond, its time grows and a single group matters less. */
  private static final int MOST_FOR_PAIRS = 512;
  private static final Option NONE = new Option(0, 0, 0);

  /** One thread, so that equal inputs give equal plans; and no gap, as the default stops at five digits. */
  private static final IntegerStrategy STRATEGY =
      IntegerStrategy.newConfigurable().withParallelism(() -> 1).withGapTolerance(NumberContext.of(12, 14));

  private final List<KnapsackGroup> given;
  private final List<List<Option>> groups;
  /** Divides every difference between costs of a group. */
  private final long unit;
  private final long budget;

  /** Throws InfeasibleBudgetException where the cheapest options do not fit. */
  Knapsack(List<KnapsackGroup> groups, long budget) {
    this.given = groups;
    // Losses count relative to the largest, by a power of two: products with costs then stay far from overflow.
    double largest = groups.stream().mapToDouble(KnapsackGroup::largestLoss).max().orElse(0);
    int exponent = largest > 0 ? Math.getExponent(largest) : 0;
    this.groups = groups.stream().map(group -> group.scaled(-exponent).useful()).collect(Collectors.toList());
    long least = cost(pick(options -> options.get(0)));
    if (least > budget) {
      throw new InfeasibleBudgetException(budget, least);
    }
    long step = 0;
    for (List<Option> options : this.groups) {
      for (Option option : options) {
        step = gcd(step, option.cost() - options.get(0).cost());
      }
    }
    this.unit = Math.max(1, step);
    // No plan can use what lies beyond the last whole step; bounds are tighter without it.
    this.budget = least + (budget - least) / unit * unit;
  }

  Solution solve(Duration time) {
    Solution scaled = solveScaled(time);
    List<Option> options = new ArrayList<>();
    for (int i = 0; i < given.size(); i++) {
      options.add(given.get(i).of(scaled.options().get(i).label()));
    }
    return new Solution(options, scaled.optimal());
  }

  private Solution solveScaled(Duration time) {
    List<Option> best = pick(options -> options.get(options.size() - 1));
    if (cost(best) <= budget) {
      return new Solution(best, true);
    }
    Bound bound = bound();
    List<Option> plan = improve(bound.feasible);
    List<List<Option>> open = reduce(bound, loss(plan));
    if (!isDecided(open)) {
      List<Option> proposal = program(open, time);
      if (proposal != null && loss(proposal) < loss(plan)) {
        plan = improve(proposal);
        open = reduce(bound, loss(plan));
      }
    }
    if (isDecided(open)) {
      return new Solution(plan, true);
    }
    List<Option> better = new KnapsackProof(open, budget, bound.price).below(loss(plan) * (1 - ROUNDING));
    if (better == null) {
      return new Solution(plan, false);
    }
    return new Solution(better.isEmpty() ? plan : better, true);
  }

  private static boolean isDecided(List<List<Option>> open) {
    return open.stream().allMatch(options -> options.size() == 1);
  }

  /**
   * What choices at a price per unit of cost prove.
   *
   * @param least no plan within the budget loses less
   * @param feasible choices at a price where they fit
   */
  private record Bound(double price, double least, List<Option> feasible) {}

  /** Bisects the price to where the choices just fit. Every price gives a valid bound; the best one is kept. */
  private Bound bound() {
    double low = 0;
    double high = 1;
    while (cost(atPrice(high)) > budget && high < Double.MAX_VALUE) {
      high *= 2;
    }
    Bound best = null;
    List<Option> feasible = atPrice(high);
    for (int i = 0; i < 200 && low < high; i++) {
      double price = low + (high - low) / 2;
      if (price <= low || price >= high) {
        break;
      }
      List<Option> chosen = atPrice(price);
      long cost = cost(chosen);
      double least = chosen.stream().mapToDouble(o -> o.loss() + price * o.cost()).sum() - price * budget;
      if (cost <= budget) {
        high = price;
        feasible = chosen;
      } else {
        low = price;
      }
      if (best == null || least > best.least) {
        best = new Bound(price, least, feasible);
      }
    }
    return best == null ? new Bound(0, 0, feasible) : new Bound(best.price, best.least, feasible);
  }

  private List<Option> atPrice(double price) {
    return pick(
        options -> {
          Option best = options.get(0);
          for (Option option : options) {
            if (option.loss() + price * option.cost() < best.loss() + price * best.cost()) {
              best = option;
            }
          }
          return best;
        });
  }

  /** Changes one group, or two together, as long as that saves loss within the budget. */
  private List<Option> improve(List<Option> feasible) {
    List<Option> chosen = new ArrayList<>(feasible);
    long left = budget - cost(chosen);
    boolean pairs = chosen.size() <= MOST_FOR_PAIRS;
    boolean changed = true;
    while (changed) {
      changed = false;
      for (int i = 0; i < chosen.size(); i++) {
        for (int j = i; j < (pairs ? chosen.size() : i + 1); j++) {
          long after = improve(chosen, i, j, left);
          changed |= after >= 0;
          left = after >= 0 ? after : left;
        }
      }
    }
    return chosen;
  }

  /**
   * Takes the best options of two groups, or of one where i = j, that there is room for. Returns what is then left of
   * the budget, or -1 if there is nothing better than what is chosen.
   */
  private long improve(List<Option> chosen, int i, int j, long left) {
    Option other = i == j ? NONE : chosen.get(j);
    long room = left + chosen.get(i).cost() + other.cost();
    // Savings within the rounding of sums do not count, or this might go on for ever.
    double least = (chosen.get(i).loss() + other.loss()) * (1 - ROUNDING);
    long after = -1;
    for (Option a : groups.get(i)) {
      for (Option b : i == j ? List.of(NONE) : groups.get(j)) {
        if (a.cost() + b.cost() <= room && a.loss() + b.loss() < least) {
          least = a.loss() + b.loss();
          after = room - a.cost() - b.cost();
          chosen.set(i, a);
          if (i != j) {
            chosen.set(j, b);
          }
        }
      }
    }
    return after;
  }

  /** The options that a plan better than {@code loss} could hold. */
  private List<List<Option>> reduce(Bound bound, double loss) {
    double allowed = loss - bound.least + ROUNDING * (loss + bound.price * budget);
    List<List<Option>> open = new ArrayList<>();
    for (List<Option> options : groups) {
      double least = options.stream().mapToDouble(o -> o.loss() + bound.price * o.cost()).min().orElseThrow();
      open.add(
          options.stream()
              .filter(o -> o.loss() + bound.price * o.cost() - least <= allowed)
              .collect(Collectors.toList()));
    }
    return open;
  }

  /**
   * What the integer program proposes; null if that is no plan. Its numbers are scaled to the size of one, where the
   * solver's tolerances make sense.
   */
  private @Nullable List<Option> program(List<List<Option>> open, Duration time) {
    List<Option> base = open.stream().map(options -> options.get(0)).collect(Collectors.toList());
    long room = budget - cost(base);
    if (room < 0) {
      // Not even the cheapest of these fit: nothing is better than what led here.
      return null;
    }
    double scale = 0;
    for (int i = 0; i < open.size(); i++) {
      for (Option option : open.get(i)) {
        scale = Math.max(scale, base.get(i).loss() - option.loss());
      }
    }
    ExpressionsBasedModel model = new ExpressionsBasedModel();
    model.options.time_abort = time.toMillis();
    model.options.time_suffice = time.toMillis();
    model.options.integer(STRATEGY);
    // Costs and losses count from each group's first option, costs in whole units: small integers stay exact.
    Expression cost = model.addExpression("cost").upper(room / unit);
    for (int i = 0; i < open.size(); i++) {
      List<Option> options = open.get(i);
      Expression one = model.addExpression("one" + i).upper(1);
      for (int k = 1; k < options.size(); k++) {
        Variable x = model.addVariable("x" + i + "_" + k).binary();
        x.weight((options.get(k).loss() - base.get(i).loss()) / scale);
        one.set(x, 1);
        cost.set(x, (options.get(k).cost() - base.get(i).cost()) / unit);
      }
    }
    return chosen(open, model.minimise());
  }

  /** The solver's choice; null if it is not one option of each group, within the budget. */
  private @Nullable List<Option> chosen(List<List<Option>> open, Optimisation.Result result) {
    if (!result.getState().isFeasible()) {
      return null;
    }
    List<Option> chosen = new ArrayList<>();
    int variable = 0;
    for (List<Option> options : open) {
      Option taken = options.get(0);
      int ones = 0;
      for (int k = 1; k < options.size(); k++) {
        double x = result.doubleValue(variable++);
        if (Math.abs(x - Math.rint(x)) > 1e-3) {
          return null;
        }
        if (Math.rint(x) == 1) {
          taken = options.get(k);
          ones++;
        }
      }
      if (ones > 1) {
        return null;
      }
      chosen.add(taken);
    }
    return cost(chosen) <= budget ? chosen : null;
  }

  private static double loss(List<Option> options) {
    return options.stream().mapToDouble(Option::loss).sum();
  }

  private static long cost(List<Option> options) {
    return options.stream().mapToLong(Option::cost).reduce(0, Math::addExact);
  }

  private interface Picker {
    Option pick(List<Option> options);
  }

  private List<Option> pick(Picker picker) {
    return groups.stream().map(picker::pick).collect(Collectors.toList());
  }

  private static long gcd(long a, long b) {
    return b == 0 ? Math.abs(a) : gcd(b, a % b);
  }
}
