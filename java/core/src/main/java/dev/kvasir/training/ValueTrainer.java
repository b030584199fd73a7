package dev.kvasir.training;

import dev.kvasir.codebook.TrainedValues;
import dev.kvasir.codebook.ValueCodebook;
import dev.kvasir.codebook.ValueEncoder;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.codebook.NativeValueTrainer;
import org.jspecify.annotations.Nullable;

/**
 * Trains an encoder and a codebook for the values of a layer together: straight-through Gumbel-softmax, AdamW, mean
 * squared error. A step is a batch, and errors are those of the last one, with the noise of training, in the units of
 * the values.
 */
public final class ValueTrainer extends CodebookTrainer<TrainedValues> {

  private final int width;
  private final int hidden;
  private final int codes;
  private final NativeValueTrainer trainer;

  private ValueTrainer(Builder options, NativeValueTrainer trainer) {
    super(trainer, options.width);
    this.width = options.width;
    this.hidden = options.hidden;
    this.codes = options.codes;
    this.trainer = trainer;
  }

  /**
   * A builder of a trainer.
   *
   * @param width kvHeads times headDim, a multiple of 16 in 16..65536
   * @param codes a multiple of 16 in 16..16384; width for 1 bit, twice as many for 2 bits
   * @return a new builder: twice as many hidden units as channels, 2000 batches of 256 tokens, seed 1
   */
  public static Builder builder(int width, int codes) {
    return new Builder(width, codes);
  }

  /** {@inheritDoc} As it stands after the last step. */
  @Override
  public synchronized TrainedValues result() {
    float[] scale = new float[width];
    float[] normWeight = new float[width];
    float[] normBias = new float[width];
    float[] firstWeight = new float[hidden * width];
    float[] firstBias = new float[hidden];
    float[] secondWeight = new float[2 * codes * hidden];
    float[] secondBias = new float[2 * codes];
    float[] table = new float[codes * width];
    trainer.read(scale, normWeight, normBias, firstWeight, firstBias, secondWeight, secondBias, table);
    ValueEncoder encoder =
        new ValueEncoder(
            new ValueEncoder.Weights(
                scale, normWeight, normBias, firstWeight, firstBias, secondWeight, secondBias));
    return new TrainedValues(encoder, new ValueCodebook(width, codes, table, null));
  }

  /** What to train. Not for use by several threads. */
  public static final class Builder {

    private final int width;
    private final int codes;
    private int hidden;
    private int steps = 2000;
    private int batch = 256;
    private double learningRate = 1e-3;
    private double weightDecay = 0.01;
    private double temperature = 1;
    private @Nullable ValueCodebook start;
    private long seed = 1;

    private Builder(int width, int codes) {
      this.width = width;
      this.codes = codes;
      this.hidden = 2 * width;
    }

    /**
     * The units between the two linear layers.
     *
     * @param hidden 1..65536
     * @return this builder
     */
    public Builder hidden(int hidden) {
      this.hidden = hidden;
      return this;
    }

    /**
     * How long to train.
     *
     * @param steps batches in all, 1..100,000,000
     * @return this builder
     */
    public Builder steps(int steps) {
      this.steps = steps;
      return this;
    }

    /**
     * The tokens of a batch.
     *
     * @param tokens 1..65536
     * @return this builder
     */
    public Builder batch(int tokens) {
      this.batch = tokens;
      return this;
    }

    /**
     * The highest learning rate: reached after a twentieth of the steps, then falling to 0 like a cosine.
     *
     * @param rate above 0, at most 1
     * @return this builder
     */
    public Builder learningRate(double rate) {
      this.learningRate = rate;
      return this;
    }

    /**
     * The weight decay of the linear layers.
     *
     * @param decay 0..1
     * @return this builder
     */
    public Builder weightDecay(double decay) {
      this.weightDecay = decay;
      return this;
    }

    /**
     * The temperature of the softmax.
     *
     * @param temperature 1e-12..1e6
     * @return this builder
     */
    public Builder temperature(double temperature) {
      this.temperature = temperature;
      return this;
    }

    /**
     * Where the codebook begins; without it, at random.
     *
     * @param codebook for example that of a {@link ValueFitter}
     * @return this builder
     * @throws IllegalArgumentException if it has another width or number of codes
     */
    public Builder start(ValueCodebook codebook) {
      Checks.require(
          codebook.width() == width && codebook.codes() == codes,
          codebook + " for a trainer of " + codes + " codes, " + width + " channels");
      this.start = codebook;
      return this;
    }

    /**
     * What batches, noise and the first weights depend on.
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
    public ValueTrainer build() {
      NativeValueTrainer trainer = new NativeValueTrainer(width, hidden, codes, seed);
      try {
        trainer.setSteps(steps);
        trainer.setBatch(batch);
        trainer.setLearningRate(learningRate);
        trainer.setWeightDecay(weightDecay);
        trainer.setTemperature(temperature);
        if (start != null) {
          trainer.setTable(start.table());
        }
        return new ValueTrainer(this, trainer);
      } catch (RuntimeException e) {
        trainer.close();
        throw e;
      }
    }
  }
}
