package dev.kvasir.calibrate;

import dev.kvasir.calibrate.ThresholdSearch.Trial;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/** Trials by rank: a front of those that none dominates, then the front of the rest, and so on. */
final class ParetoFronts {

  private ParetoFronts() {}

  /** The trials that no other dominates, by ascending bits and score; equal ones once. */
  static List<Trial> first(List<Trial> trials) {
    List<Trial> sorted = new ArrayList<>(trials);
    sorted.sort(
        Comparator.comparingDouble(Trial::bits)
            .thenComparing(Comparator.comparingDouble(Trial::score).reversed())
            .thenComparingInt(Trial::number));
    List<Trial> front = new ArrayList<>();
    double highest = Double.NEGATIVE_INFINITY;
    for (Trial trial : sorted) {
      if (trial.score() > highest) {
        front.add(trial);
        highest = trial.score();
      }
    }
    return front;
  }

  /**
   * The best {@code count} trials: whole fronts while they fit, and of the next one those that together dominate most.
   */
  static List<Trial> best(List<Trial> trials, int count) {
    List<Trial> best = new ArrayList<>();
    List<Trial> rest = new ArrayList<>(trials);
    while (best.size() < count) {
      List<Trial> front = first(rest);
      rest.removeAll(front);
      best.addAll(best.size() + front.size() <= count ? front : most(front, trials, count - best.size()));
    }
    return best;
  }

  /**
   * The area that trials dominate, down to a score and up to a number of bits. Trials beyond those count nothing.
   */
  static double area(List<Trial> trials, double leastScore, double mostBits) {
    double area = 0;
    double reached = leastScore;
    for (Trial trial : first(trials)) {
      if (trial.bits() < mostBits && trial.score() > reached) {
        area += (mostBits - trial.bits()) * (trial.score() - reached);
        reached = trial.score();
      }
    }
    return area;
  }

  /** One after the other, the trial of the front that adds most to the area of those taken. */
  private static List<Trial> most(List<Trial> front, List<Trial> all, int count) {
    double leastScore = all.stream().mapToDouble(Trial::score).min().orElseThrow();
    double mostBits = all.stream().mapToDouble(Trial::bits).max().orElseThrow();
    List<Trial> left = new ArrayList<>(front);
    List<Trial> taken = new ArrayList<>();
    while (taken.size() < count) {
      Trial next = left.get(0);
      double most = -1;
      for (Trial trial : left) {
        List<Trial> with = new ArrayList<>(taken);
        with.add(trial);
        double area = area(with, leastScore, mostBits);
        if (area > most) {
          most = area;
          next = trial;
        }
      }
      taken.add(next);
      left.remove(next);
    }
    return taken;
  }
}
