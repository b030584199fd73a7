package dev.kvasir.calibrate;

import dev.kvasir.internal.Checks;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Random;
import java.util.function.Consumer;

/**
 * Finds thresholds for MixKVQ: pairs (tau16, tau4) that no other pair beats both in score and in bits.
 *
 * <pre>{@code
 * ThresholdSearch.Result found = ThresholdSearch.builder().build().run(
 *     (tau16, tau4) -> {
 *       Evaluation e = evaluate(MixKvq.thresholds(tau16, tau4)); // of one's own
 *       return new ThresholdSearch.Measurement(e.accuracy(), e.keyBits());
 *     });
 * MixKvq method = found.best(2.7).map(t -> MixKvq.thresholds(t.tau16(), t.tau4())).orElseThrow();
 * }</pre>
 *
 * <p>The objective may be anything: it is called once per trial and is what the search costs. Trials are proposed by a
 * Tree-structured Parzen estimator with two objectives: after a few trials that cover the square evenly, the better
 * quarter of all trials and the rest each give a density, and the next trial is, of some draws from the first, the one
 * where the first is highest over the second. Better means: of an earlier front, peeled off one after the other; within
 * a front, the trials that together dominate most. The same seed and the same measurements give the same trials.
 */
public final class ThresholdSearch {

  /** The least threshold that is tried. */
  public static final double LEAST = 0.1;

  /** The greatest threshold that is tried. */
  public static final double GREATEST = 2.0;

  /** What is to be made good. */
  @FunctionalInterface
  public interface Objective {

    /**
     * Measures one pair of thresholds.
     *
     * @param tau16 channels above it keep 16 bits
     * @param tau4 channels above it, but not above {@code tau16}, have 4 bits
     * @return what they give
     */
    Measurement measure(double tau16, double tau4);
  }

  /**
   * What a pair of thresholds gives.
   *
   * @param score the higher the better, say accuracy
   * @param bits the lower the better, say effective bits of a key element
   */
  public record Measurement(double score, double bits) {}

  /**
   * One pair of thresholds that was measured.
   *
   * @param number counted from 0
   * @param tau16 threshold of the 16-bit tier
   * @param tau4 threshold of the 4-bit tier
   * @param score what was measured
   * @param bits what was measured
   */
  public record Trial(int number, double tau16, double tau4, double score, double bits) {

    /**
     * Whether this trial is no worse than the other in both score and bits, and better in one.
     *
     * @param other another trial
     * @return whether it dominates it
     */
    public boolean dominates(Trial other) {
      return score >= other.score && bits <= other.bits && (score > other.score || bits < other.bits);
    }
  }

  private final int trials;
  private final long seed;
  private final Consumer<Trial> progress;

  private ThresholdSearch(Builder builder) {
    this.trials = builder.trials;
    this.seed = builder.seed;
    this.progress = builder.progress;
  }

  /**
   * Settings, with defaults for all of them.
   *
   * @return a builder
   */
  public static Builder builder() {
    return new Builder();
  }

  /**
   * Measures all trials, one after the other, in the calling thread.
   *
   * @param objective what is to be made good
   * @return all trials
   * @throws IllegalStateException if the objective returns something that is not a finite number; what it throws itself
   *     is passed on
   */
  public Result run(Objective objective) {
    Objects.requireNonNull(objective, "objective");
    ParzenSampler sampler = new ParzenSampler(new Random(seed), trials);
    List<Trial> done = new ArrayList<>();
    for (int number = 0; number < trials; number++) {
      double[] next = sampler.propose(done);
      Measurement measured = Objects.requireNonNull(objective.measure(next[0], next[1]), "measurement");
      if (!Double.isFinite(measured.score()) || !Double.isFinite(measured.bits())) {
        throw new IllegalStateException(
            "the objective gave " + measured + " for tau16 = " + next[0] + ", tau4 = " + next[1]);
      }
      Trial trial = new Trial(number, next[0], next[1], measured.score(), measured.bits());
      done.add(trial);
      progress.accept(trial);
    }
    return new Result(done);
  }

  /** What a search found. */
  public static final class Result {

    private final List<Trial> trials;
    private final List<Trial> front;

    Result(List<Trial> trials) {
      this.trials = List.copyOf(trials);
      this.front = Collections.unmodifiableList(ParetoFronts.first(trials));
    }

    /**
     * All trials, in the order in which they were made.
     *
     * @return the trials
     */
    public List<Trial> trials() {
      return trials;
    }

    /**
     * The trials that no other dominates, by ascending bits. Of trials that measured the same, the first is here.
     *
     * @return the Pareto front
     */
    public List<Trial> front() {
      return front;
    }

    /**
     * The trial of highest score under a limit.
     *
     * @param mostBits the limit
     * @return the trial; empty if none keeps to the limit
     */
    public Optional<Trial> best(double mostBits) {
      return front.stream().filter(trial -> trial.bits() <= mostBits).reduce((fewer, more) -> more);
    }
  }

  /** Settings of a search. */
  public static final class Builder {

    private int trials = 30;
    private long seed;
    private Consumer<Trial> progress = trial -> {};

    private Builder() {}

    /**
     * How many pairs are measured. Default 30.
     *
     * @param count 1 or more
     * @return this
     * @throws IllegalArgumentException if not positive
     */
    public Builder trials(int count) {
      Checks.requirePositive("trials", count);
      this.trials = count;
      return this;
    }

    /**
     * What chance depends on. Default 0.
     *
     * @param value any number
     * @return this
     */
    public Builder seed(long value) {
      this.seed = value;
      return this;
    }

    /**
     * Called after each trial.
     *
     * @param listener takes the trial
     * @return this
     */
    public Builder progress(Consumer<Trial> listener) {
      this.progress = Objects.requireNonNull(listener, "listener");
      return this;
    }

    /**
     * The search.
     *
     * @return a search that can be run any number of times
     */
    public ThresholdSearch build() {
      return new ThresholdSearch(this);
    }
  }
}
