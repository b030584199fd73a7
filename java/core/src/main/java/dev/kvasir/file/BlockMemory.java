package dev.kvasir.file;

import java.nio.ByteBuffer;

/** Memory outside of the heap in which blocks wait to be attached: {@code KvCache.blockMemory}. For many threads. */
public interface BlockMemory extends AutoCloseable {

  /**
   * A block in memory of this kind.
   *
   * @param block its bytes, from the position to the limit
   * @return the same bytes: the buffer's own where they are in such memory already, else a copy. They stay as long as the
   *     buffer, or one made from it, can be reached
   */
  ByteBuffer hold(ByteBuffer block);

  /** No more will be held. What is held stays. */
  @Override
  default void close() {}

  /**
   * Plain memory, any that is outside of the heap.
   *
   * @return a memory without end
   */
  static BlockMemory plain() {
    return block ->
        block.isDirect()
            ? block.slice()
            : ByteBuffer.allocateDirect(block.remaining()).put(block.duplicate()).flip();
  }
}
