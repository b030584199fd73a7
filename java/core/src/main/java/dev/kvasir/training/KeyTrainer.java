package dev.kvasir.training;

import dev.kvasir.codebook.KeyCodebook;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.codebook.NativeKeyTrainer;
import dev.kvasir.rope.RopePairs;

/**
 * Trains the {@link KeyCodebook} of a layer from its keys before RoPE, by expectation and maximisation.
 *
 * <p>Every head trains its stages in turn, each on what those before it left over, with a temperature that falls from
 * step to step; of all tables of a stage the best is kept. When a head's last stage is done its tables are rounded to
 * numbers that a GPU looks up as bytes with {@code Precision.FAST}: each stage after the first is fitted once more, to
 * what those before it leave then. Errors are those of normalised keys. Equal data, options and seeds give equal tables,
 * whatever the machine and its threads.
 */
public final class KeyTrainer extends CodebookTrainer<KeyCodebook> {

  private final Builder options;
  private final NativeKeyTrainer trainer;

  private KeyTrainer(Builder options, NativeKeyTrainer trainer) {
    super(trainer, options.kvHeads * options.headDim);
    this.options = options;
    this.trainer = trainer;
  }

  /**
   * A builder of a trainer.
   *
   * @param kvHeads 1..1024
   * @param headDim a multiple of 16 in 32..256
   * @return a new builder: 11 stages of 64 entries, halves, 100 steps, seed 1
   */
  public static Builder builder(int kvHeads, int headDim) {
    return new Builder(kvHeads, headDim);
  }

  /**
   * The error that a head's first stages leave.
   *
   * @param kvHead the head
   * @param stage how many stages; 0 for the mean square of the normalised keys
   * @return the mean squared error per element
   * @throws IllegalArgumentException if those stages are not done
   */
  public synchronized double error(int kvHead, int stage) {
    return trainer.error(kvHead, stage);
  }

  /** {@inheritDoc} Stages that are not done are all 0. */
  @Override
  public synchronized KeyCodebook result() {
    long vectors = (long) options.kvHeads * options.stages * options.entries;
    float[] tables = new float[Math.toIntExact(vectors * options.headDim)];
    trainer.readTables(tables);
    return new KeyCodebook(
        options.kvHeads, options.headDim, options.pairs, options.stages, options.entries, tables);
  }

  /** What to train. Not for use by several threads. */
  public static final class Builder {

    private final int kvHeads;
    private final int headDim;
    private RopePairs pairs = RopePairs.HALVES;
    private int stages = 11;
    private int entries = 64;
    private int steps = 100;
    private double[] temperatures = {1, 1e-3, 1e-5};
    private long seed = 1;

    private Builder(int kvHeads, int headDim) {
      this.kvHeads = kvHeads;
      this.headDim = headDim;
    }

    private Builder(Builder other) {
      this(other.kvHeads, other.headDim);
      pairs = other.pairs;
      stages = other.stages;
      entries = other.entries;
      steps = other.steps;
      temperatures = other.temperatures.clone();
      seed = other.seed;
    }

    /**
     * Which channels RoPE rotates together.
     *
     * @param pairs the pairs
     * @return this builder
     */
    public Builder pairs(RopePairs pairs) {
      this.pairs = pairs;
      return this;
    }

    /**
     * The stages. With 64 entries and 128 channels, 11 are 1.03 bits and 21 are 1.97 bits per element.
     *
     * @param stages 1..64
     * @return this builder
     */
    public Builder stages(int stages) {
      this.stages = stages;
      return this;
    }

    /**
     * The vectors of a table.
     *
     * @param entries 16, 32 or 64
     * @return this builder
     */
    public Builder entries(int entries) {
      this.entries = entries;
      return this;
    }

    /**
     * Most steps of a stage.
     *
     * @param steps 1..10000
     * @return this builder
     */
    public Builder steps(int steps) {
      this.steps = steps;
      return this;
    }

    /**
     * Temperatures of a stage, in units of the norm of a token; 1e-12..1e6 each.
     *
     * @param first of the first step
     * @param second of the second step
     * @param last of the last step; between these two it falls exponentially
     * @return this builder
     */
    public Builder temperatures(double first, double second, double last) {
      this.temperatures = new double[] {first, second, last};
      return this;
    }

    /**
     * What the choice of the first tables depends on.
     *
     * @param seed any number
     * @return this builder
     */
    public Builder seed(long seed) {
      this.seed = seed;
      return this;
    }

    /**
     * The trainer.
     *
     * @return a new trainer, to be closed
     * @throws IllegalArgumentException if a number is out of range
     */
    public KeyTrainer build() {
      long elements = Checks.product(Checks.product(kvHeads, stages), Checks.product(entries, headDim));
      Checks.require(elements <= Integer.MAX_VALUE - 8, "tables of " + elements + " elements fit no array");
      NativeKeyTrainer trainer =
          new NativeKeyTrainer(kvHeads, headDim, pairs.code(), stages, entries, seed);
      try {
        trainer.setSteps(steps);
        trainer.setTemperatures(temperatures[0], temperatures[1], temperatures[2]);
        return new KeyTrainer(new Builder(this), trainer);
      } catch (RuntimeException e) {
        trainer.close();
        throw e;
      }
    }
  }
}
