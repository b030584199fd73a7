package dev.kvasir.internal;

import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The life of one native resource: open, closed, and destroyed when it is closed and the last use has ended.
 *
 * <p>Uses count themselves in and out and may overlap. {@link #close} never waits: if uses are under way, the last of
 * them destroys the resource. An owner that is forgotten without a close is closed by the garbage collector; the
 * caller of {@link #acquire} keeps the owner reachable until {@link #release}, so that this never hits an owner in
 * use.
 */
public final class Lifetime implements AutoCloseable {

  private static final Cleaner CLEANER = Cleaner.create();
  /** The sign bit; the others count uses. */
  private static final int CLOSED = Integer.MIN_VALUE;

  private final String name;
  private final Runnable destroy;
  private final AtomicInteger state = new AtomicInteger();
  private final Cleaner.Cleanable cleanable;

  /**
   * Begins a life.
   *
   * @param owner the object whose collection closes this life
   * @param name what messages call the resource
   * @param destroy frees the resource; runs once; must not refer to the owner
   */
  public Lifetime(Object owner, String name, Runnable destroy) {
    this.name = name;
    this.destroy = destroy;
    this.cleanable = CLEANER.register(owner, this::end);
  }

  /** Begins a use. Throws IllegalStateException after a close. */
  public void acquire() {
    if (!tryAcquire()) {
      throw closedException();
    }
  }

  /** Begins a use unless closed. */
  public boolean tryAcquire() {
    int seen;
    do {
      seen = state.get();
      if (seen < 0) {
        return false;
      }
    } while (!state.compareAndSet(seen, seen + 1));
    return true;
  }

  /** Ends a use. */
  public void release() {
    if (state.decrementAndGet() == CLOSED) {
      destroy.run();
    }
  }

  /** Throws IllegalStateException after a close. */
  public void requireOpen() {
    if (isClosed()) {
      throw closedException();
    }
  }

  public boolean isClosed() {
    return state.get() < 0;
  }

  /** Refuses new uses and destroys the resource, now or at the end of the last use. Again: nothing. */
  @Override
  public void close() {
    cleanable.clean();
  }

  private void end() {
    if (state.getAndUpdate(seen -> seen | CLOSED) == 0) {
      destroy.run();
    }
  }

  private IllegalStateException closedException() {
    return new IllegalStateException(name + " is closed");
  }
}
