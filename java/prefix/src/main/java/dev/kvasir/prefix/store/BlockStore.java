package dev.kvasir.prefix.store;

import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Keeps blocks under their names. A store may be slow, lose blocks, or be down: who asks it verifies what comes and does
 * without what does not. Calls return at once; the work is done elsewhere, and given up after the deadline. Names are
 * given in the order of a text, so a block is of use only where all before it are.
 *
 * <p>For many threads.
 */
public interface BlockStore extends AutoCloseable {

  /** Takes blocks as they come. */
  interface Arrival {

    /**
     * The next block.
     *
     * @param index which of the names, one more each time
     * @param bytes as they were put, from the position to the limit; nobody changes them from now on
     * @return whether more is wanted
     */
    boolean block(int index, ByteBuffer bytes);
  }

  /**
   * How many blocks are there, from the first name on without a gap.
   *
   * @param names in the order of the text
   * @param deadline how long the answer is of use
   * @return the number, some day
   */
  CompletableFuture<Integer> containsLongest(List<ChainHash> names, Duration deadline);

  /**
   * Fetches blocks from the first name on, up to the first that is not there. They arrive in order, one after the other,
   * maybe while others are still under way.
   *
   * @param names in the order of the text
   * @param deadline how long they are of use
   * @param arrival takes them, on threads of the store
   * @return how many arrived, some day
   */
  CompletableFuture<Integer> getMany(List<ChainHash> names, Duration deadline, Arrival arrival);

  /**
   * Keeps blocks, as far as there is room. What is there under a name already may stay.
   *
   * @param blocks names and bytes, which nobody changes
   * @param deadline how long it is worth trying
   * @return how many of them are there now, some day
   */
  CompletableFuture<Integer> putMany(List<KvBlock> blocks, Duration deadline);

  /**
   * Keeps blocks that stand behind others of their text, which are of no use without those: whoever gives blocks up should
   * give up these first. Where some of those before are not there, nothing need be kept.
   *
   * @param before names of all blocks before these, in the order of the text
   * @param blocks names and bytes, which nobody changes
   * @param deadline how long it is worth trying
   * @return how many of the blocks are there now, some day
   */
  default CompletableFuture<Integer> putMany(List<ChainHash> before, List<KvBlock> blocks, Duration deadline) {
    return putMany(blocks, deadline);
  }

  /**
   * Forgets blocks; names that are not there are ignored.
   *
   * @param names which
   * @param deadline how long it is worth trying
   * @return done, some day
   */
  CompletableFuture<Void> delete(List<ChainHash> names, Duration deadline);

  /**
   * What the store holds, as far as it knows that.
   *
   * @return a snapshot
   */
  default Holdings holdings() {
    return Holdings.UNKNOWN;
  }

  /** Ends the store's own threads and gives its memory back. Blocks outside of this process stay. */
  @Override
  default void close() {}
}
