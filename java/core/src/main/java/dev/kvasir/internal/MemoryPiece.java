package dev.kvasir.internal;

import java.nio.ByteBuffer;

/** A piece of native memory. */
public interface MemoryPiece {

  /** A new buffer over all of it, made from no other. */
  ByteBuffer view();

  /** Nobody will look at it any more. */
  void free();
}
