package dev.kvasir.calibrate;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvMethod;
import dev.kvasir.ShrinkPolicy;
import java.util.Objects;

/**
 * A method with key scaling.
 *
 * @param method what it compresses with
 * @param scaling the factors
 */
record ScaledKeys(KvMethod method, KeyScaling scaling) implements KvMethod {

  ScaledKeys {
    Objects.requireNonNull(method, "method");
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
  public float[] keyScaling(int layer) {
    return scaling.lambda(layer);
  }
}
