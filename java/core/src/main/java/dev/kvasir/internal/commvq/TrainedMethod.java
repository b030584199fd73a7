package dev.kvasir.internal.commvq;

import dev.kvasir.KvMethod;
import dev.kvasir.Side;

/** A method that brings codebooks, which a cache asks for when it is built. */
public interface TrainedMethod extends KvMethod {

  /** What it brings for a layer. */
  LayerModel model(int layer);

  /** What the codebooks of one side weigh. */
  long codebookBytes(Side side);

  @Override
  default long codebookBytes() {
    return codebookBytes(Side.KEYS) + codebookBytes(Side.VALUES);
  }
}
