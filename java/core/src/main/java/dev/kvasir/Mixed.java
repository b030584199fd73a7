package dev.kvasir;

import dev.kvasir.internal.commvq.LayerModel;
import dev.kvasir.internal.commvq.TrainedMethod;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * The keys of one method with the values of another.
 *
 * <pre>{@code
 * KvMethod method = Mixed.of(MixKvq.keyBits(2.7), PatternKv.bits(2)).sinks(4);
 * }</pre>
 *
 * <p>Keys and values err in different ways, so the best recipe for one is seldom the best for the other. Whatever
 * concerns keys alone, such as scaling and whether they come before RoPE, is as the first method says, and so is the order
 * in which pages shrink.
 *
 * @param keyMethod whose keys
 * @param valueMethod whose values
 * @param window see {@link KvMethod#window}
 * @param sinks see {@link KvMethod#sinks}
 */
public record Mixed(KvMethod keyMethod, KvMethod valueMethod, int window, int sinks) implements TrainedMethod {

  /**
   * Checks the numbers.
   *
   * @param keyMethod whose keys
   * @param valueMethod whose values
   * @param window see {@link KvMethod#window}
   * @param sinks see {@link KvMethod#sinks}
   * @throws IllegalArgumentException for a negative number
   */
  public Mixed {
    Objects.requireNonNull(keyMethod, "keyMethod");
    Objects.requireNonNull(valueMethod, "valueMethod");
    if (window < 0 || sinks < 0) {
      throw new IllegalArgumentException("window is " + window + ", sinks is " + sinks);
    }
  }

  /**
   * With the larger window of the two, and the larger number of sinks.
   *
   * @param keys whose keys
   * @param values whose values
   * @return the method
   */
  public static Mixed of(KvMethod keys, KvMethod values) {
    return new Mixed(
        keys, values, Math.max(keys.window(), values.window()), Math.max(keys.sinks(), values.sinks()));
  }

  /**
   * This method with another window.
   *
   * @param tokens see {@link KvMethod#window}
   * @return a new method
   */
  public Mixed window(int tokens) {
    return new Mixed(keyMethod, valueMethod, tokens, sinks);
  }

  /**
   * This method with another number of sinks.
   *
   * @param tokens see {@link KvMethod#sinks}
   * @return a new method
   */
  public Mixed sinks(int tokens) {
    return new Mixed(keyMethod, valueMethod, window, tokens);
  }

  @Override
  public String name() {
    return keyMethod.name() + "+" + valueMethod.name();
  }

  @Override
  public CodecChoice keys(int layer) {
    return keyMethod.keys(layer);
  }

  @Override
  public CodecChoice values(int layer) {
    return valueMethod.values(layer);
  }

  @Override
  public ShrinkPolicy shrinkPolicy() {
    return keyMethod.shrinkPolicy();
  }

  @Override
  public boolean keysBeforeRope() {
    return keyMethod.keysBeforeRope();
  }

  @Override
  public float[] keyScaling(int layer) {
    return keyMethod.keyScaling(layer);
  }

  @Override
  public long codebookBytes(Side side) {
    return (side == Side.KEYS ? keyMethod : valueMethod) instanceof TrainedMethod trained
        ? trained.codebookBytes(side)
        : 0;
  }

  /**
   * For the library itself: what a cache is built from.
   *
   * @param layer 0 .. layers-1
   * @return the codebooks as native objects
   */
  @Override
  public LayerModel model(int layer) {
    return LayerModel.mixed(modelOf(keyMethod, layer), modelOf(valueMethod, layer));
  }

  private static @Nullable LayerModel modelOf(KvMethod method, int layer) {
    return method instanceof TrainedMethod trained ? trained.model(layer) : null;
  }
}
