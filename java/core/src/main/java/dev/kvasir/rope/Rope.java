package dev.kvasir.rope;

import dev.kvasir.internal.Checks;
import dev.kvasir.internal.NativeRope;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * The rotary position embedding of a layer: which channels form pairs, and by how many radians per position each pair
 * turns.
 *
 * <pre>{@code
 * Rope llama31 = Rope.plain(RopePairs.HALVES, 500_000, 128).llama3(8, 1, 4, 8192);
 * }</pre>
 *
 * <p>Immutable. Angles are computed and reduced in double precision, so that positions in the millions are as exact as
 * the first ones.
 */
public final class Rope {

  private final RopePairs pairs;
  private final double base;
  private final double[] frequencies;
  private final double attentionFactor;

  private Rope(RopePairs pairs, double base, double[] frequencies, double attentionFactor) {
    this.pairs = pairs;
    this.base = base;
    this.frequencies = frequencies;
    this.attentionFactor = attentionFactor;
  }

  /**
   * Plain RoPE: pair j turns by base^(-2j/headDim) radians per position.
   *
   * @param pairs which channels are rotated together
   * @param base above 1, mostly 10,000 or more
   * @param headDim a multiple of 16 in 32..256
   * @return the embedding
   * @throws IllegalArgumentException if a number is out of range
   */
  public static Rope plain(RopePairs pairs, double base, int headDim) {
    double[] frequencies = new double[Checks.headDim(headDim) / 2];
    NativeRope.plain(base, headDim, frequencies);
    return new Rope(pairs, base, frequencies, 1);
  }

  /**
   * RoPE by its frequencies, e.g. those of a scaling that is not here.
   *
   * @param pairs which channels are rotated together
   * @param frequencies radians per position, half as many as a head has channels; copied
   * @return the embedding
   * @throws IllegalArgumentException if there are too few or too many, or one is not finite
   */
  public static Rope of(RopePairs pairs, double... frequencies) {
    int headDim = 2 * frequencies.length;
    if (headDim < 32 || headDim > 256 || headDim % 16 != 0 || !Arrays.stream(frequencies).allMatch(Double::isFinite)) {
      throw new IllegalArgumentException("frequencies " + Arrays.toString(frequencies));
    }
    return new Rope(pairs, Double.NaN, frequencies.clone(), 1);
  }

  /**
   * Linear scaling: every pair turns more slowly by a factor.
   *
   * @param factor 1 or more
   * @return the scaled embedding
   * @throws IllegalArgumentException if the factor is out of range
   */
  public Rope linear(double factor) {
    double[] scaled = frequencies.clone();
    NativeRope.linear(factor, headDim(), scaled);
    return new Rope(pairs, base, scaled, attentionFactor);
  }

  /**
   * The scaling of Llama 3.1: long waves are stretched, short ones stay, those between are blended.
   *
   * @param factor how far long waves are stretched, 1 or more
   * @param lowFactor {@code low_freq_factor}, above 0
   * @param highFactor {@code high_freq_factor}, above lowFactor
   * @param originalContext {@code original_max_position_embeddings}
   * @return the scaled embedding
   * @throws IllegalArgumentException if a number is out of range
   */
  public Rope llama3(double factor, double lowFactor, double highFactor, double originalContext) {
    double[] scaled = frequencies.clone();
    NativeRope.llama3(factor, lowFactor, highFactor, originalContext, headDim(), scaled);
    return new Rope(pairs, base, scaled, attentionFactor);
  }

  /**
   * YaRN: pairs that turn slowly are stretched, those that turn fast stay, those between are blended.
   *
   * @param factor how far slow pairs are stretched, 1 or more
   * @param betaFast turns within the original context from which on a pair stays; usually 32
   * @param betaSlow turns up to which a pair is stretched whole; usually 1
   * @param originalContext {@code original_max_position_embeddings}
   * @return the scaled embedding, with its attention factor
   * @throws IllegalArgumentException if a number is out of range
   */
  public Rope yarn(double factor, double betaFast, double betaSlow, double originalContext) {
    double[] scaled = frequencies.clone();
    double attention = NativeRope.yarn(base, factor, betaFast, betaSlow, originalContext, headDim(), scaled);
    return new Rope(pairs, base, scaled, attention);
  }

  /**
   * The same turns with another attention factor, for models whose files say it.
   *
   * @param factor above 0, in place of this one's
   * @return an embedding with the factor
   * @throws IllegalArgumentException if it is not positive and finite
   */
  public Rope attentionFactor(double factor) {
    Checks.require(factor > 0 && factor < Double.POSITIVE_INFINITY, "an attention factor of " + factor);
    return new Rope(pairs, base, frequencies, factor);
  }

  /**
   * Which channels are rotated together.
   *
   * @return the pairs
   */
  public RopePairs pairs() {
    return pairs;
  }

  /**
   * The channels of a head.
   *
   * @return a multiple of 16
   */
  public int headDim() {
    return 2 * frequencies.length;
  }

  /**
   * Radians per position of each pair.
   *
   * @return a new array of headDim / 2 elements
   */
  public double[] frequencies() {
    return frequencies.clone();
  }

  /**
   * What rotated queries and rotated keys are multiplied by: 1, but for YaRN, and where it was given.
   *
   * @return the factor
   */
  public double attentionFactor() {
    return attentionFactor;
  }

  /**
   * Rotates rows in place; the attention factor is not applied.
   *
   * @param rows {@code [tokens][heads][headDim]}
   * @param tokens 1 or more
   * @param heads 1 or more
   * @param first the position of the first token; negative ones turn back
   * @throws IllegalArgumentException if the array is too short or a number out of range
   */
  public void rotate(float[] rows, int tokens, int heads, long first) {
    rotate(rows, tokens, heads, first, 1);
  }

  /**
   * Undoes {@link #rotate}, up to rounding.
   *
   * @param rows {@code [tokens][heads][headDim]}, changed in place
   * @param tokens 1 or more
   * @param heads 1 or more
   * @param first the position of the first row
   * @throws IllegalArgumentException if the array is too short or a number out of range
   */
  public void rotateBack(float[] rows, int tokens, int heads, long first) {
    rotate(rows, tokens, heads, first, -1);
  }

  private void rotate(float[] rows, int tokens, int heads, long first, double scale) {
    Checks.requirePositive("heads", heads);
    int elements = Checks.rows("rows", rows, tokens, (long) heads * headDim());
    NativeRope.rotate(rows, elements, tokens, heads, headDim(), frequencies, pairs.code(), first, scale);
  }

  @Override
  public boolean equals(@Nullable Object other) {
    return other instanceof Rope that
        && pairs == that.pairs
        && attentionFactor == that.attentionFactor
        && Arrays.equals(frequencies, that.frequencies);
  }

  @Override
  public int hashCode() {
    return 31 * Arrays.hashCode(frequencies) + pairs.hashCode();
  }

  @Override
  public String toString() {
    return "Rope[" + pairs + ", head dim " + headDim() + ", base " + base + ", attention factor " + attentionFactor
        + "]";
  }
}
