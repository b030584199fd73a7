package dev.kvasir.training;

import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.codebook.NativeTrainer;
import java.util.concurrent.CancellationException;

/**
 * A training that proceeds step by step: whoever calls owns the loop.
 *
 * <pre>{@code
 * trainer.add(rows, tokens);
 * Codebook result = trainer.train(progress -> bar.set(progress.done()));
 *
 * while (trainer.step()) { ... }      // or so
 * Codebook result = trainer.result();
 * }</pre>
 *
 * <p>A step that fails, for want of memory, ends its training: what it leaves is no state to go on from.
 *
 * <p>Methods may be called from any thread and exclude each other, but for {@link #cancel}, which never waits.
 *
 * @param <R> what is trained
 */
abstract class CodebookTrainer<R> implements AutoCloseable {

  private final NativeTrainer trainer;
  private final int width;
  private volatile boolean cancelled;

  CodebookTrainer(NativeTrainer trainer, int width) {
    this.trainer = trainer;
    this.width = width;
  }

  /**
   * Adds data. Before the first step.
   *
   * @param rows {@code [tokens][kvHeads][headDim]}; copied
   * @param tokens 1 or more
   * @throws IllegalArgumentException if the array is too short, or training has begun
   * @throws NotFiniteException if an element is NaN, infinite or above 32752 in magnitude
   * @throws IllegalStateException after close
   */
  public final synchronized void add(float[] rows, int tokens) {
    trainer.add(rows, tokens, Checks.rows("rows", rows, tokens, width));
  }

  /**
   * Does one step.
   *
   * @return false if nothing was left to do
   * @throws IllegalArgumentException if there are too few tokens to train on, or an earlier step failed
   * @throws CancellationException after {@link #cancel}
   * @throws IllegalStateException after close
   */
  public final synchronized boolean step() {
    if (cancelled) {
      throw new CancellationException("the training was cancelled");
    }
    return trainer.step();
  }

  /**
   * Where the training stands.
   *
   * @return the progress
   * @throws IllegalStateException after close
   */
  public final synchronized TrainingProgress progress() {
    return new TrainingProgress(trainer.done(), trainer.done() == 0 ? Double.POSITIVE_INFINITY : trainer.error());
  }

  /**
   * Does all steps that are left.
   *
   * @param listener told after every step
   * @return what was trained
   * @throws IllegalArgumentException if there are too few tokens to train on
   * @throws CancellationException if {@link #cancel} was called, by the listener or by another thread
   * @throws IllegalStateException after close
   */
  public final R train(TrainingListener listener) {
    while (step()) {
      listener.onProgress(progress());
    }
    return result();
  }

  /** Ends the training before its next step. From any thread; for good. */
  public final void cancel() {
    cancelled = true;
  }

  /**
   * What has been trained so far.
   *
   * @return a codebook that does not change with further steps
   * @throws IllegalArgumentException if no step has been done, or one failed
   * @throws IllegalStateException after close
   */
  public abstract R result();

  /** Frees the native memory, after a step that is under way. Results stay valid. */
  @Override
  public final void close() {
    trainer.close();
  }
}
