package dev.kvasir.codebook;

import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.codebook.NativeValueEncoder;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * The encoder of one layer's values: two linear layers that turn a value into the bits of a {@link ValueCodebook}.
 *
 * <p>A value is divided by the scales of its channels and by its Euclidean norm, normalised (LayerNorm), then goes
 * through Linear, GELU and Linear; of each four outputs the largest gives two bits. Deterministic.
 */
public final class ValueEncoder {

  /**
   * The weights.
   *
   * @param scale {@code [width]}, positive
   * @param normWeight {@code [width]}
   * @param normBias {@code [width]}
   * @param firstWeight {@code [hidden][width]}
   * @param firstBias {@code [hidden]}
   * @param secondWeight {@code [2 * codes][hidden]}
   * @param secondBias {@code [2 * codes]}
   */
  public record Weights(
      float[] scale,
      float[] normWeight,
      float[] normBias,
      float[] firstWeight,
      float[] firstBias,
      float[] secondWeight,
      float[] secondBias) {

    private Weights copy() {
      return new Weights(
          scale.clone(),
          normWeight.clone(),
          normBias.clone(),
          firstWeight.clone(),
          firstBias.clone(),
          secondWeight.clone(),
          secondBias.clone());
    }

    private boolean same(Weights that) {
      return Arrays.equals(scale, that.scale)
          && Arrays.equals(normWeight, that.normWeight)
          && Arrays.equals(normBias, that.normBias)
          && Arrays.equals(firstWeight, that.firstWeight)
          && Arrays.equals(firstBias, that.firstBias)
          && Arrays.equals(secondWeight, that.secondWeight)
          && Arrays.equals(secondBias, that.secondBias);
    }
  }

  private final Weights weights;
  private final NativeValueEncoder encoder;

  /**
   * Makes an encoder. Its width, hidden units and codes are those of the scale and of the two biases.
   *
   * @param weights the weights; copied
   * @throws IllegalArgumentException if their sizes do not agree or are out of range, or a scale is not positive
   * @throws NotFiniteException if an element is not finite
   */
  public ValueEncoder(Weights weights) {
    this.weights = weights.copy();
    long width = weights.scale.length;
    long hidden = weights.firstBias.length;
    long outputs = weights.secondBias.length;
    require("normWeight", weights.normWeight, width);
    require("normBias", weights.normBias, width);
    require("firstWeight", weights.firstWeight, hidden * width);
    require("secondWeight", weights.secondWeight, outputs * hidden);
    if (outputs % 2 != 0) {
      throw new IllegalArgumentException("secondBias has " + outputs + " elements, not two for each code");
    }
    this.encoder =
        new NativeValueEncoder(
            width(),
            hidden(),
            codes(),
            weights.scale,
            weights.normWeight,
            weights.normBias,
            weights.firstWeight,
            weights.firstBias,
            weights.secondWeight,
            weights.secondBias);
  }

  private static void require(String name, float[] array, long elements) {
    Checks.require(array.length == elements, name + " has " + array.length + " elements, not " + elements);
  }

  NativeValueEncoder nativeEncoder() {
    return encoder;
  }

  /**
   * The channels of all kv heads together.
   *
   * @return kvHeads times headDim
   */
  public int width() {
    return weights.scale.length;
  }

  /**
   * The units between the two linear layers.
   *
   * @return 1 or more
   */
  public int hidden() {
    return weights.firstBias.length;
  }

  /**
   * The bits of a token.
   *
   * @return a multiple of 16
   */
  public int codes() {
    return weights.secondBias.length / 2;
  }

  /**
   * The weights.
   *
   * @return a copy
   */
  public Weights weights() {
    return weights.copy();
  }

  @Override
  public boolean equals(@Nullable Object other) {
    return other instanceof ValueEncoder that && weights.same(that.weights);
  }

  @Override
  public int hashCode() {
    return Arrays.hashCode(new int[] {width(), hidden(), codes()});
  }

  @Override
  public String toString() {
    return "ValueEncoder[" + width() + " channels, " + hidden() + " hidden units, " + codes() + " codes]";
  }
}
