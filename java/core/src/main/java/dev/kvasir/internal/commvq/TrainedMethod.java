package dev.kvasir.internal.commvq;

import dev.kvasir.KvMethod;

/** A method that brings codebooks, which a cache asks for when it is built. */
public interface TrainedMethod extends KvMethod {

  /** What it brings for a layer. */
  LayerModel model(int layer);
}
