package dev.kvasir.calibrate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.calibrate.ThresholdSearch.Measurement;
import dev.kvasir.calibrate.ThresholdSearch.Objective;
import dev.kvasir.calibrate.ThresholdSearch.Result;
import dev.kvasir.calibrate.ThresholdSearch.Trial;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;

class ThresholdSearchTest {

  /** Distances to two points: the best trade-offs are on the line between (0.5, 0.7) and (1.6, 1.4). */
  private static final Objective TWO_GOALS =
      (x, y) -> new Measurement(-(sq(x - 0.5) + sq(y - 0.7)), 2 + sq(x - 1.6) + sq(y - 1.4));

  /** What thresholds do: fewer channels above them cost fewer bits, and score less the more there were. */
  private static final Objective TIERS =
      (tau16, tau4) -> {
        double at16 = Math.exp(-3 * tau16);
        double at4 = Math.max(0, Math.exp(-1.5 * tau4) - at16);
        double lost = 0.5 * (1 - at16 - at4) * Math.exp(-2 * tau4) + 0.04 * at4 + 0.3 * sq(tau16 - 1.2);
        return new Measurement(1 - lost, 2 + 14 * at16 + 2 * at4);
      };

  private static double sq(double x) {
    return x * x;
  }

  private static Result search(Objective objective, long seed, int trials) {
    return ThresholdSearch.builder().seed(seed).trials(trials).build().run(objective);
  }

  private static Result random(Objective objective, long seed, int trials) {
    Random random = new Random(seed);
    List<Trial> done = new ArrayList<>();
    for (int i = 0; i < trials; i++) {
      double x = 0.1 + 1.9 * random.nextDouble();
      double y = 0.1 + 1.9 * random.nextDouble();
      Measurement m = objective.measure(x, y);
      done.add(new Trial(i, x, y, m.score(), m.bits()));
    }
    return new Result(done);
  }

  /** The area under the trials, by counting a fine grid: shares nothing with the search. */
  private static double area(Result result, double leastScore, double mostScore, double leastBits, double mostBits) {
    int cells = 200;
    int covered = 0;
    for (int i = 0; i < cells; i++) {
      double score = leastScore + (i + 0.5) / cells * (mostScore - leastScore);
      double fewest =
          result.trials().stream().filter(t -> t.score() >= score).mapToDouble(Trial::bits).min().orElse(mostBits);
      covered += (int) Math.ceil(cells * Math.max(0, mostBits - Math.max(fewest, leastBits)) / (mostBits - leastBits));
    }
    return (double) covered / (cells * cells);
  }

  @Test
  void coversMoreThanChanceWithTwoGoals() {
    assertBeatsChance(TWO_GOALS, -1.8, 0, 2, 3.8);
  }

  @Test
  void coversMoreThanChanceOnTiers() {
    assertBeatsChance(TIERS, 0.6, 1, 2, 6);
  }

  /**
   * Over 60 seeds, the search leaves less of the area uncovered than as many random trials do, on average. The mean
   * difference must be 4 standard errors above 0: by chance that happens once in thirty thousand.
   */
  private static void assertBeatsChance(Objective objective, double low, double high, double few, double many) {
    int seeds = 60;
    double sum = 0;
    double squares = 0;
    for (int seed = 0; seed < seeds; seed++) {
      double gain =
          area(search(objective, seed, 30), low, high, few, many)
              - area(random(objective, 1000 + seed, 30), low, high, few, many);
      sum += gain;
      squares += gain * gain;
    }
    double mean = sum / seeds;
    double error = Math.sqrt((squares / seeds - mean * mean) / (seeds - 1));
    assertTrue(mean > 4 * error, () -> "gains " + mean + " of the area, with a standard error of " + error);
  }

  @Test
  void findsAnOptimumCloserThanChance() {
    Objective bowl = (x, y) -> new Measurement(-(sq(x - 1.3) + sq(y - 0.4)), 2);
    int closer = 0;
    for (int seed = 0; seed < 60; seed++) {
      double found = search(bowl, seed, 30).best(2).orElseThrow().score();
      double chance = random(bowl, 1000 + seed, 30).best(2).orElseThrow().score();
      closer += found > chance ? 1 : 0;
    }
    // Of 60 fair coins 45 or more fall on one side once in fifteen thousand times.
    int times = closer;
    assertTrue(times >= 45, () -> "closer in " + times + " of 60");
  }

  @Test
  void theSameSeedGivesTheSameTrials() {
    Result once = search(TIERS, 7, 30);
    assertEquals(once.trials(), search(TIERS, 7, 30).trials());
    assertNotEquals(once.trials(), search(TIERS, 8, 30).trials());
    ThresholdSearch twice = ThresholdSearch.builder().seed(7).build();
    assertEquals(twice.run(TIERS).trials(), twice.run(TIERS).trials());
  }

  @Test
  void trialsStayInTheSquareAndAreReported() {
    List<Trial> reported = new ArrayList<>();
    Result result = ThresholdSearch.builder().progress(reported::add).build().run(TIERS);
    assertEquals(30, result.trials().size());
    assertEquals(result.trials(), reported);
    for (int i = 0; i < reported.size(); i++) {
      Trial trial = reported.get(i);
      assertEquals(i, trial.number());
      assertTrue(trial.tau16() >= 0.1 && trial.tau16() <= 2.0, trial::toString);
      assertTrue(trial.tau4() >= 0.1 && trial.tau4() <= 2.0, trial::toString);
      assertEquals(TIERS.measure(trial.tau16(), trial.tau4()), new Measurement(trial.score(), trial.bits()));
    }
    for (int trials : new int[] {1, 2, 3, 100}) {
      assertEquals(trials, search(TIERS, 1, trials).trials().size());
    }
  }

  @Test
  void theFrontHoldsWhatNothingDominates() {
    for (int seed = 0; seed < 20; seed++) {
      // Rounded, so that some measure the same.
      Objective coarse =
          (x, y) -> {
            Measurement m = TIERS.measure(x, y);
            return new Measurement(Math.rint(20 * m.score()) / 20, Math.rint(5 * m.bits()) / 5);
          };
      Result result = search(coarse, seed, 40);
      for (int i = 1; i < result.front().size(); i++) {
        assertTrue(result.front().get(i).bits() > result.front().get(i - 1).bits());
        assertTrue(result.front().get(i).score() > result.front().get(i - 1).score());
      }
      for (Trial trial : result.trials()) {
        boolean dominated = result.trials().stream().anyMatch(other -> other.dominates(trial));
        boolean there =
            result.front().stream().anyMatch(f -> f.score() == trial.score() && f.bits() == trial.bits());
        assertEquals(!dominated, there, trial::toString);
      }
      for (double limit : new double[] {0, 2.2, 3, 5, 100}) {
        Optional<Trial> best = result.best(limit);
        double highest =
            result.trials().stream().filter(t -> t.bits() <= limit).mapToDouble(Trial::score).max().orElse(-1);
        assertEquals(highest, best.map(Trial::score).orElse(-1.0));
        assertFalse(best.isPresent() && best.get().bits() > limit);
      }
    }
  }

  @Test
  void mistakesAreNamed() {
    assertThrows(IllegalArgumentException.class, () -> ThresholdSearch.builder().trials(0));
    assertThrows(NullPointerException.class, () -> ThresholdSearch.builder().progress(null));
    assertThrows(NullPointerException.class, () -> ThresholdSearch.builder().build().run(null));
    assertThrows(NullPointerException.class, () -> search((x, y) -> null, 1, 3));
    for (double bad : new double[] {Double.NaN, Double.POSITIVE_INFINITY}) {
      assertThrows(IllegalStateException.class, () -> search((x, y) -> new Measurement(bad, 2), 1, 3));
      assertThrows(IllegalStateException.class, () -> search((x, y) -> new Measurement(1, bad), 1, 3));
    }
    RuntimeException own = new RuntimeException("of the objective");
    assertEquals(
        own,
        assertThrows(
            RuntimeException.class,
            () ->
                search(
                    (x, y) -> {
                      throw own;
                    },
                    1,
                    3)));
  }
}
