package dev.kvasir.calibrate;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvMethod;
import dev.kvasir.Need;
import dev.kvasir.ShrinkPolicy;
import dev.kvasir.Side;
import dev.kvasir.internal.Checks;
import java.util.EnumSet;
import java.util.Optional;
import java.util.Set;

/**
 * A method with key scaling. Keys before RoPE are stored by codebooks that were trained on them as they are: scaling
 * would tear the two apart.
 *
 * @param method what it compresses with
 * @param scaling the factors
 */
record ScaledKeys(KvMethod method, KeyScaling scaling) implements KvMethod {

  ScaledKeys {
    Checks.require(
        !method.keysBeforeRope(),
        "key scaling for " + method.name() + ", whose keys come from codebooks that were trained without it; with Mixed,"
            + " scale the keys of one method and take the values of the other");
    method = method.forScaledKeys();
  }

  @Override
  public String name() {
    return method.name() + "-scaled";
  }

  @Override
  public CodecChoice keys(int layer) {
    return method.keys(layer);
  }

  @Override
  public CodecChoice values(int layer) {
    return method.values(layer);
  }

  @Override
  public int window() {
    return method.window();
  }

  @Override
  public int sinks() {
    return method.sinks();
  }

  @Override
  public ShrinkPolicy shrinkPolicy() {
    return method.shrinkPolicy();
  }

  @Override
  public boolean keysBeforeRope() {
    return method.keysBeforeRope();
  }

  @Override
  public Set<Need> needs() {
    Set<Need> needs = EnumSet.noneOf(Need.class);
    needs.addAll(method.needs());
    needs.remove(Need.KEY_SCALING);
    return needs;
  }

  @Override
  public ScaledKeys forScaledKeys() {
    return this;
  }

  @Override
  public float[] keyScaling(int layer) {
    return scaling.lambda(layer);
  }

  @Override
  public Optional<Codebook> codebook(int layer, Side side) {
    return method.codebook(layer, side);
  }

  @Override
  public long codebookBytes(Side side) {
    return method.codebookBytes(side);
  }
}
