package com.github.tjake.jlama.tensor;

import dev.kvasir.KvSequence;
import java.util.UUID;

/**
 * What Jlama takes for its buffer of a session: the session's compressed sequence. Where Jlama would count, the sequence does:
 * the position is its length, so that a session goes on where it ended.
 *
 * <p>It is in this package because the constructor of Jlama's buffers is visible in no other.
 */
public final class KvasirBuffer extends KvBufferCache.KvBuffer {

  /** Bytes of a page that is never made. */
  private static final int PAGE_BYTES = 1 << 23;

  private final KvSequence sequence;
  private final Runnable end;

  /**
   * A buffer for one call of Jlama.
   *
   * @param cache the model's cache of buffers
   * @param session the session
   * @param sequence its tokens
   * @param end what to do when the call is over
   */
  public KvasirBuffer(KvBufferCache cache, UUID session, KvSequence sequence, Runnable end) {
    cache.super(session, PAGE_BYTES, true);
    this.sequence = sequence;
    this.end = end;
  }

  /**
   * The session's tokens.
   *
   * @return the sequence
   */
  public KvSequence sequence() {
    return sequence;
  }

  @Override
  public int getCurrentContextPosition() {
    return Math.toIntExact(sequence.length());
  }

  /** Rewinds: tokens from there on are forgotten. */
  @Override
  public void setCurrentContextPosition(int position) {
    long length = sequence.length();
    if (position > length) {
      throw new IllegalArgumentException("position " + position + " of a session of " + length + " tokens");
    }
    sequence.truncate(position);
  }

  /** Does nothing: the sequence has counted the token. */
  @Override
  public void incrementContextPosition() {}

  @Override
  public AbstractTensor getKeyTensorForPosition(int layer, int position) {
    throw compressed();
  }

  @Override
  public AbstractTensor getValTensorForPosition(int layer, int position) {
    throw compressed();
  }

  @Override
  public AbstractTensor[] getKeyTensorsUptoPosition(int layer, int position) {
    throw compressed();
  }

  @Override
  public AbstractTensor[] getValTensorsUptoPosition(int layer, int position) {
    throw compressed();
  }

  @Override
  public void close() {
    end.run();
  }

  private static UnsupportedOperationException compressed() {
    return new UnsupportedOperationException("the rows of this session are compressed: sequence().read decodes them");
  }
}
