package dev.kvasir.method;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvMethod;
import dev.kvasir.Need;
import dev.kvasir.ShrinkPolicy;
import dev.kvasir.Side;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Records;
import java.util.EnumSet;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;

/**
 * The keys of one method with the values of another.
 *
 * <pre>{@code
 * KvMethod method = Mixed.of(MixKvq.budget(2.7), PatternKv.bits(2));
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
public record Mixed(KvMethod keyMethod, KvMethod valueMethod, int window, int sinks) implements KvMethod {

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
    Checks.requireNotNegative("window", window);
    Checks.requireNotNegative("sinks", sinks);
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
    return Records.with(this, "window", tokens);
  }

  /**
   * This method with another number of sinks.
   *
   * @param tokens see {@link KvMethod#sinks}
   * @return a new method
   */
  public Mixed sinks(int tokens) {
    return Records.with(this, "sinks", tokens);
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

  /** All that the keys need, and of what the values do, their codebooks. */
  @Override
  public Set<Need> needs() {
    Set<Need> needs = EnumSet.noneOf(Need.class);
    needs.addAll(keyMethod.needs());
    boolean keyBooks = keyMethod.codebookBytes(Side.KEYS) > 0;
    if (valueMethod.needs().contains(Need.CODEBOOKS)) {
      needs.add(Need.CODEBOOKS);
    } else if (!keyBooks) {
      needs.remove(Need.CODEBOOKS);
    }
    return needs;
  }

  @Override
  public Mixed forScaledKeys() {
    return Records.with(this, "keyMethod", keyMethod.forScaledKeys());
  }

  @Override
  public float[] keyScaling(int layer) {
    return keyMethod.keyScaling(layer);
  }

  @Override
  public Optional<Codebook> codebook(int layer, Side side) {
    return of(side).codebook(layer, side);
  }

  @Override
  public long codebookBytes(Side side) {
    return of(side).codebookBytes(side);
  }

  private KvMethod of(Side side) {
    return side == Side.KEYS ? keyMethod : valueMethod;
  }
}
