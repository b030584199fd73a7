package dev.kvasir.calibrate;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Records;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.function.IntFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Factors per channel that make keys easier to quantise: a cache stores K/lambda and multiplies queries by lambda, so
 * scores stay what they are while channels with large values lose their weight in the quantiser.
 *
 * <p>lambda is the largest magnitude that a channel or its RoPE partner reached, to the power alpha; alpha is the one
 * of a grid that changes attention least, one for each layer. As both channels of a pair share a factor, it may be
 * applied before or after RoPE. Calibration texts are short, and slow pairs hardly turn in them; so positions are
 * stretched by a factor while calibrating ("positional interpolation" in PM-KVQ).
 */
public final class KeyScaling {

  /**
   * How to calibrate.
   *
   * @param rope of the model, with its base and scaling
   * @param positionScale what positions are multiplied by
   * @param bits width at which keys are quantised, per token, while searching alpha
   * @param group channels of a quantisation group: 32, 64, 128 or the head dim; 0 for the largest up to 128
   * @param alphas the grid, ascending
   */
  public record Options(
      Rope rope,
      double positionScale,
      int bits,
      int group,
      List<Double> alphas) {

    /**
     * Copies the list.
     *
     * @param rope of the model
     * @param positionScale what positions are multiplied by
     * @param bits width at which keys are quantised while searching alpha
     * @param group channels of a quantisation group; 0 for the largest up to 128
     * @param alphas the grid, ascending
     * @throws IllegalArgumentException if the position scale is not positive, the width not 1..16, or the grid empty,
     *     not ascending or not within 0..1
     */
    public Options {
      Objects.requireNonNull(rope, "rope");
      alphas = List.copyOf(alphas);
      Checks.require(
          positionScale > 0 && positionScale < Double.POSITIVE_INFINITY, "a position scale of " + positionScale);
      Checks.require(bits >= 1 && bits <= 16, bits + " bits, not 1..16");
      Checks.require(!alphas.isEmpty(), "no alpha to try");
      double before = -1;
      for (double alpha : alphas) {
        Checks.require(
            alpha > before && alpha >= 0 && alpha <= 1, "the alphas " + alphas + " do not ascend within 0..1");
        before = alpha;
      }
    }

    /**
     * PM-KVQ's settings: positions times 4, alphas 0, 0.05, ..., 1, keys at 4 bits.
     *
     * @param rope of the model: its pairs, its base, its scaling; the head dim is that of every layer
     * @return the options
     */
    public static Options of(Rope rope) {
      List<Double> grid = IntStream.rangeClosed(0, 20).mapToObj(i -> i / 20.0).collect(Collectors.toList());
      return new Options(rope, 4, 4, 0, grid);
    }

    /**
     * These options for another RoPE.
     *
     * @param rope of the model
     * @return new options
     */
    public Options rope(Rope rope) {
      return Records.with(this, "rope", rope);
    }

    /**
     * These options with another stretching of positions.
     *
     * @param scale positive; 1 for none
     * @return new options
     */
    public Options positionScale(double scale) {
      return Records.with(this, "positionScale", scale);
    }

    /**
     * These options with another width.
     *
     * @param bits 1..16
     * @return new options
     */
    public Options bits(int bits) {
      return Records.with(this, "bits", bits);
    }
  }

  private final RopePairs pairs;
  private final List<Double> alphas;
  private final List<Layer> layers;

  /** One layer's result. The arrays are never changed. */
  record Layer(int headDim, double alpha, float[] lambda, double[] errors) {

    Layer {
      for (float factor : lambda) {
        // The bounds of calibration, with room for their rounding to float.
        Checks.require(factor >= 0.99e-4 && factor <= 1.01e4, "a factor of " + factor + ", not within 1e-4 .. 1e4");
      }
    }

    private boolean equalTo(Layer other) {
      return headDim == other.headDim
          && Double.compare(alpha, other.alpha) == 0
          && Arrays.equals(lambda, other.lambda)
          && Arrays.equals(errors, other.errors);
    }
  }

  /** Takes the layers' arrays as they are. */
  KeyScaling(KvGeometry geometry, RopePairs pairs, List<Double> alphas, List<Layer> layers) {
    this.pairs = pairs;
    this.alphas = List.copyOf(alphas);
    this.layers = List.copyOf(layers);
    requireGeometry(geometry);
    for (int i = 0; i < layers.size(); i++) {
      requirePairs(i, layers.get(i));
    }
  }

  /**
   * Calibrates every layer of a model. One that takes keys from another layer has that layer's factors, and no sample
   * of it is asked for.
   *
   * @param geometry the model
   * @param options how
   * @param samples the samples of a layer; walked twice, so that they need not all be in memory
   * @return the scaling
   * @throws IllegalArgumentException if a layer has no sample, or a sample does not fit the geometry
   * @throws NotFiniteException if the data hold NaN, infinity or what no cache would accept
   */
  public static KeyScaling calibrate(
      KvGeometry geometry, Options options, IntFunction<? extends Iterable<AttentionSample>> samples) {
    Layer[] own = new Layer[geometry.layers()];
    for (int layer = 0; layer < own.length; layer++) {
      if (geometry.source(layer) == layer) {
        own[layer] = new KeyScalingSearch(geometry, layer, options).run(samples.apply(layer));
      }
    }
    List<Layer> layers = new ArrayList<>();
    for (int layer = 0; layer < own.length; layer++) {
      layers.add(own[geometry.source(layer)]);
    }
    return new KeyScaling(geometry, options.rope.pairs(), options.alphas, layers);
  }

  /**
   * Calibrates every layer from files.
   *
   * @param geometry the model
   * @param options how
   * @param queryTokens how many of a text's last tokens to compute attention for, at most; 128 are often enough
   * @param texts the files of each text
   * @return the scaling
   * @throws IOException if a file cannot be read, or lacks keys, values or queries
   * @throws IllegalArgumentException if there is no text, or it does not fit the geometry
   * @throws NotFiniteException if the data hold NaN, infinity or what no cache would accept
   */
  public static KeyScaling calibrate(
      KvGeometry geometry, Options options, int queryTokens, List<CalibrationTensors> texts) throws IOException {
    texts.forEach(text -> text.requireGeometry(geometry));
    try {
      return calibrate(
          geometry,
          options,
          layer ->
              () ->
                  texts.stream()
                      .map(
                          text -> {
                            try {
                              return text.sample(layer).lastQueries(queryTokens);
                            } catch (IOException e) {
                              throw new UncheckedIOException(e);
                            }
                          })
                      .iterator());
    } catch (UncheckedIOException e) {
      throw e.getCause();
    }
  }

  /**
   * A scaling from its factors, e.g. one that was found elsewhere.
   *
   * @param geometry the model
   * @param pairs which channels RoPE rotates together
   * @param lambda factors by layer, {@code [kvHeads][headDim]} each; copied
   * @return the scaling; its alphas are unknown, NaN
   * @throws IllegalArgumentException if the factors do not fit the geometry, are not within 1e-4 .. 1e4, or differ
   *     within a pair
   */
  public static KeyScaling of(KvGeometry geometry, RopePairs pairs, List<float[]> lambda) {
    Checks.require(lambda.size() == geometry.layers(), lambda.size() + " layers of factors for " + geometry);
    List<Layer> layers = new ArrayList<>();
    for (int i = 0; i < lambda.size(); i++) {
      layers.add(new Layer(geometry.headDim(i), Double.NaN, lambda.get(i).clone(), new double[0]));
    }
    return new KeyScaling(geometry, pairs, List.of(), layers);
  }

  /**
   * The number of layers.
   *
   * @return 1 or more
   */
  public int layers() {
    return layers.size();
  }

  /**
   * Which channels share a factor.
   *
   * @return the pairs
   */
  public RopePairs pairs() {
    return pairs;
  }

  /**
   * The factors of a layer.
   *
   * @param layer 0 .. layers-1
   * @return {@code [kvHeads][headDim]}, a copy
   * @throws IllegalArgumentException if there is no such layer
   */
  public float[] lambda(int layer) {
    return at(layer).lambda.clone();
  }

  /**
   * The exponent that was best for a layer.
   *
   * @param layer 0 .. layers-1
   * @return 0..1, or NaN if unknown
   * @throws IllegalArgumentException if there is no such layer
   */
  public double alpha(int layer) {
    return at(layer).alpha;
  }

  /**
   * The exponents that were tried.
   *
   * @return the grid, ascending; empty if unknown
   */
  public List<Double> alphas() {
    return alphas;
  }

  /**
   * How far attention moved with the keys quantised, for each alpha of the grid: squared error of the outputs over
   * their squared norm.
   *
   * @param layer 0 .. layers-1
   * @return errors in the order of {@link #alphas}, a copy
   * @throws IllegalArgumentException if there is no such layer
   */
  public double[] errors(int layer) {
    return at(layer).errors.clone();
  }

  /**
   * A method that compresses as the given one does, with keys scaled: the cache divides keys when they are stored and
   * multiplies queries when they attend.
   *
   * @param method the method
   * @return a method for models with as many layers, kv heads and channels
   * @throws IllegalArgumentException if the method stores keys before RoPE: its codebooks do not know the scaling
   */
  public KvMethod applyTo(KvMethod method) {
    return new ScaledKeys(method, this);
  }

  /**
   * Builds the scaling into a layer's weights, in place, so that nothing has to be done at run time: key projections
   * are divided by lambda and query projections multiplied. Right for models without a norm between projection and
   * RoPE.
   *
   * @param layer 0 .. layers-1
   * @param inputs columns of the weights: the hidden size, or 1 for biases
   * @param wq query projection, {@code [queryHeads * headDim][inputs]}
   * @param wk key projection, {@code [kvHeads * headDim][inputs]}
   * @throws IllegalArgumentException if the layer or a size does not fit; the weights are then unchanged
   */
  public void foldInto(int layer, int inputs, float[] wq, float[] wk) {
    float[] lambda = at(layer).lambda;
    int headDim = at(layer).headDim;
    Checks.require(inputs >= 1, "weights with " + inputs + " columns");
    Checks.require(
        (long) lambda.length * inputs == wk.length,
        "wk has " + wk.length + " elements, not " + lambda.length + " * " + inputs);
    Checks.require(
        wq.length > 0 && wq.length % wk.length == 0,
        "wq has " + wq.length + " elements, no multiple of the " + wk.length + " of wk");
    int queriesPerKey = wq.length / wk.length;
    for (int i = 0; i < wk.length; i++) {
      wk[i] /= lambda[i / inputs];
    }
    for (int i = 0; i < wq.length; i++) {
      int row = i / inputs;
      wq[i] *= lambda[row / headDim / queriesPerKey * headDim + row % headDim];
    }
  }

  @Override
  public boolean equals(@Nullable Object other) {
    return other instanceof KeyScaling that
        && pairs == that.pairs
        && alphas.equals(that.alphas)
        && layers.size() == that.layers.size()
        && IntStream.range(0, layers.size()).allMatch(i -> layers.get(i).equalTo(that.layers.get(i)));
  }

  @Override
  public int hashCode() {
    return layers.stream()
        .mapToInt(layer -> Arrays.hashCode(layer.lambda))
        .reduce(pairs.code(), (a, b) -> 31 * a + b);
  }

  @Override
  public String toString() {
    return "KeyScaling[" + pairs + ", alpha "
        + layers.stream().map(layer -> String.valueOf(layer.alpha)).collect(Collectors.joining(", ")) + "]";
  }

  void requireGeometry(KvGeometry geometry) {
    Checks.require(
        layers.size() == geometry.layers(),
        "a key scaling of " + layers.size() + " layers for a model of " + geometry.layers());
    for (int i = 0; i < layers.size(); i++) {
      Layer layer = layers.get(i);
      Checks.require(
          layer.headDim == geometry.headDim(i) && layer.lambda.length == geometry.rowSize(i),
          "layer " + i + ": a key scaling of " + layer.lambda.length + " channels, heads of " + layer.headDim
              + ", for " + geometry.rowSize(i) + " channels, heads of " + geometry.headDim(i));
    }
  }

  private void requirePairs(int index, Layer layer) {
    for (int i = 0; i < layer.lambda.length; i++) {
      int channel = i % layer.headDim;
      int partner =
          pairs == RopePairs.HALVES ? (channel + layer.headDim / 2) % layer.headDim : channel ^ 1;
      Checks.require(
          layer.lambda[i] == layer.lambda[i - channel + partner],
          "layer " + index + ": channels " + channel + " and " + partner + " are a pair and differ in their factors");
    }
  }

  private Layer at(int layer) {
    return layers.get(Checks.layer(layer, layers.size()));
  }
}
