package dev.kvasir.internal.codebook;

import dev.kvasir.KvMethod;
import dev.kvasir.internal.ConfigPart;
import dev.kvasir.internal.NativeCall;
import dev.kvasir.internal.jni.CacheConfig;

/** What a cache must know to store a side of a layer in a basis: {@code [kvHeads][headDim][headDim]}. */
public record BasisPart(int side, float[] vectors) implements KvMethod.Codebook, ConfigPart {

  @Override
  public void applyTo(CacheConfig config, int layer) {
    NativeCall.runWith(memory -> config.set_basis(layer, side, memory.in(vectors), vectors.length));
  }
}
