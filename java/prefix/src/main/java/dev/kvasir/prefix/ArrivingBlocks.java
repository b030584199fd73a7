package dev.kvasir.prefix;

import dev.kvasir.file.KvBlock;
import java.nio.ByteBuffer;
import java.util.AbstractList;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;

/**
 * Blocks of a text that are on their way. Going through them waits for each, so that the first ones are attached while
 * the others still come. It ends where no more come, or not in time.
 */
final class ArrivingBlocks extends AbstractList<KvBlock> {

  private record Arrived(KvBlock block, Tier tier) {}

  private final long end;
  private final List<Arrived> arrived = new ArrayList<>();
  private boolean done;
  private int limit = Integer.MAX_VALUE;
  /** The block that the last iterator gave, or how many there are where it has given all. */
  private int position;

  /** Those that come before this moment, by {@link System#nanoTime}. */
  ArrivingBlocks(long end) {
    this.end = end;
  }

  /** The next one is there. Returns whether it is still wanted. */
  synchronized boolean arrive(KvBlock block, Tier tier) {
    if (done) {
      return false;
    }
    arrived.add(new Arrived(block, tier));
    notifyAll();
    return true;
  }

  /** No more will come. */
  synchronized void finish() {
    done = true;
    notifyAll();
  }

  synchronized boolean isFinished() {
    return done;
  }

  /** No more than this many are wanted. */
  synchronized void cut(int count) {
    limit = Math.min(limit, count);
  }

  /** Waits for all that come. */
  @Override
  public int size() {
    int count = 0;
    while (isThere(count)) {
      count++;
    }
    return count;
  }

  @Override
  public boolean isEmpty() {
    return !isThere(0);
  }

  @Override
  public KvBlock get(int index) {
    if (!isThere(index)) {
      throw new IndexOutOfBoundsException(index);
    }
    synchronized (this) {
      return arrived.get(index).block;
    }
  }

  synchronized Tier tierOf(int index) {
    return arrived.get(index).tier;
  }

  /** The images of all that come. */
  List<ByteBuffer> images() {
    int count = size();
    synchronized (this) {
      return arrived.subList(0, count).stream().map(each -> each.block.bytes()).toList();
    }
  }

  /** Which block is at fault, where a loop over all of them has just failed; -1 where it was none. */
  synchronized int atFault() {
    return position < Math.min(limit, arrived.size()) ? position : -1;
  }

  @Override
  public Iterator<KvBlock> iterator() {
    return new Iterator<>() {
      private int next;

      @Override
      public boolean hasNext() {
        boolean more = isThere(next);
        if (!more) {
          mark(next);
        }
        return more;
      }

      @Override
      public KvBlock next() {
        if (!isThere(next)) {
          throw new NoSuchElementException();
        }
        mark(next);
        return get(next++);
      }
    };
  }

  private synchronized void mark(int index) {
    position = index;
  }

  /** Waits until a block is there, or will not be. */
  private synchronized boolean isThere(int index) {
    boolean interrupted = false;
    while (index >= arrived.size() && index < limit && !done) {
      long left = (end - System.nanoTime()) / 1_000_000;
      if (left <= 0) {
        done = true;
        break;
      }
      try {
        wait(left);
      } catch (InterruptedException e) {
        interrupted = true;
        done = true; // who is interrupted has no time to wait
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
    return index < Math.min(limit, arrived.size());
  }
}
