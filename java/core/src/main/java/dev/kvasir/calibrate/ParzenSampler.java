package dev.kvasir.calibrate;

import dev.kvasir.calibrate.ThresholdSearch.Trial;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;

/**
 * Proposes points of the square of thresholds: a Tree-structured Parzen estimator for two objectives. Inside, the square
 * is [0, 1] by [0, 1].
 */
final class ParzenSampler {

  /** Trials before densities say anything: a third of all, but no more than this. */
  private static final int MOST_FIRST = 10;
  /** The share of trials that counts as good. */
  private static final double GOOD = 0.25;
  /** Draws from the good density for each proposal. */
  private static final int DRAWS = 32;
  /** The width of a kernel over one trial, as a share of the square; it falls with the sixth root of their number. */
  private static final double WIDTH = 0.25;

  private final Random random;
  private final List<double[]> first;

  ParzenSampler(Random random, int trials) {
    this.random = random;
    this.first = spread(Math.min(MOST_FIRST, Math.max(1, trials / 3)));
  }

  /** The next point to measure: (tau16, tau4). */
  double[] propose(List<Trial> done) {
    double[] point = done.size() < first.size() ? first.get(done.size()) : fromDensities(done);
    return new double[] {threshold(point[0]), threshold(point[1])};
  }

  /** A Latin square: one point in each row and each column, so that few points cover both thresholds evenly. */
  private List<double[]> spread(int count) {
    List<Integer> columns = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      columns.add(i);
    }
    Collections.shuffle(columns, random);
    List<double[]> points = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      points.add(
          new double[] {(i + random.nextDouble()) / count, (columns.get(i) + random.nextDouble()) / count});
    }
    Collections.shuffle(points, random);
    return points;
  }

  private double[] fromDensities(List<Trial> done) {
    int count = (int) Math.ceil(GOOD * done.size());
    List<Trial> good = ParetoFronts.best(done, count);
    List<Trial> others = new ArrayList<>(done);
    others.removeAll(good);
    Density wanted = new Density(good);
    Density unwanted = new Density(others);
    double[] best = null;
    double highest = Double.NEGATIVE_INFINITY;
    for (int i = 0; i < DRAWS; i++) {
      double[] point = wanted.draw(random);
      double gain = Math.log(wanted.at(point)) - Math.log(unwanted.at(point));
      if (best == null || gain > highest) {
        best = point;
        highest = gain;
      }
    }
    return best;
  }

  private static double threshold(double x) {
    return ThresholdSearch.LEAST + x * (ThresholdSearch.GREATEST - ThresholdSearch.LEAST);
  }

  private static double place(double threshold) {
    return (threshold - ThresholdSearch.LEAST) / (ThresholdSearch.GREATEST - ThresholdSearch.LEAST);
  }

  /** A mixture in equal parts: a bell around each trial, cut off at the edges of the square, and the square itself. */
  private static final class Density {
    private final List<double[]> centres = new ArrayList<>();
    private final double width;

    Density(List<Trial> trials) {
      for (Trial trial : trials) {
        centres.add(new double[] {place(trial.tau16()), place(trial.tau4())});
      }
      width = WIDTH * Math.pow(Math.max(1, trials.size()), -1.0 / 6);
    }

    double at(double[] point) {
      double sum = 1;
      for (double[] centre : centres) {
        sum += bell(point[0], centre[0]) * bell(point[1], centre[1]);
      }
      return sum / (centres.size() + 1);
    }

    double[] draw(Random random) {
      int which = random.nextInt(centres.size() + 1);
      if (which == centres.size()) {
        return new double[] {random.nextDouble(), random.nextDouble()};
      }
      return new double[] {inside(centres.get(which)[0], random), inside(centres.get(which)[1], random)};
    }

    private double inside(double centre, Random random) {
      // At least half of a bell whose centre is inside lies on one side of it, and the square is wider than the bell.
      double x;
      do {
        x = centre + width * random.nextGaussian();
      } while (x < 0 || x > 1);
      return x;
    }

    private double bell(double x, double centre) {
      double z = (x - centre) / width;
      double mass = normal((1 - centre) / width) - normal(-centre / width);
      return Math.exp(-z * z / 2) / (width * Math.sqrt(2 * Math.PI) * mass);
    }

    /** The normal distribution function, to 1e-7 (Abramowitz and Stegun, 26.2.17). */
    private static double normal(double z) {
      double t = 1 / (1 + 0.2316419 * Math.abs(z));
      double poly =
          t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
      double tail = poly * Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI);
      return z >= 0 ? 1 - tail : tail;
    }
  }
}
