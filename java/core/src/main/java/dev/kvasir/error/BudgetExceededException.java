package dev.kvasir.error;

import org.jspecify.annotations.Nullable;

/**
 * The byte budget of a cache, or of one of its layers, does not hold what the call needs. The call has changed nothing:
 * close or truncate sequences and call again.
 *
 * <p>A step that appends to one layer after the other may find the room gone in the middle. Then the layers before it
 * have the new tokens and the others have not; {@code sequence.rollback()} makes all of them as long as the shortest,
 * which is as it was before the step. {@code sequence.reserve(tokens)} before a step keeps it from happening.
 */
public class BudgetExceededException extends KvException {

  private static final long serialVersionUID = 1L;

  /** Bytes that the call needs. */
  private final long bytesNeeded;

  /** Bytes that could be had. */
  private final long bytesLeft;

  /** The layer that needs them. */
  private final int layer;

  /** Whose budget it is. */
  private final boolean layerBudget;

  /**
   * Makes an exception without numbers.
   *
   * @param message which budget, what is held and what was needed
   * @param cause what led to it, or null
   */
  public BudgetExceededException(String message, @Nullable Throwable cause) {
    this(message, -1, -1, -1, false, cause);
  }

  /**
   * Makes an exception.
   *
   * @param message which budget, what is held and what was needed
   * @param bytesNeeded bytes that the call needs, -1 where unknown
   * @param bytesLeft bytes that could be had, -1 where unknown
   * @param layer the layer that needs them, -1 for several or unknown
   * @param layerBudget whether the budget is that layer's own
   * @param cause what led to it, or null
   */
  public BudgetExceededException(
      String message, long bytesNeeded, long bytesLeft, int layer, boolean layerBudget, @Nullable Throwable cause) {
    super(Code.BUDGET_EXCEEDED, message, cause);
    this.bytesNeeded = bytesNeeded;
    this.bytesLeft = bytesLeft;
    this.layer = layer;
    this.layerBudget = layerBudget;
  }

  /**
   * Bytes that the call needs beside what is held.
   *
   * @return the number, -1 where it is unknown
   */
  public long bytesNeeded() {
    return bytesNeeded;
  }

  /**
   * Bytes that the budget could still give: its room, and what pages that can shrink would free at most.
   *
   * @return the number, less than {@link #bytesNeeded}; -1 where it is unknown
   */
  public long bytesLeft() {
    return bytesLeft;
  }

  /**
   * The layer that needs the bytes.
   *
   * @return its number; -1 where all layers need some, as in a fork, or where it is unknown
   */
  public int layer() {
    return layer;
  }

  /**
   * Whose budget does not hold the bytes.
   *
   * @return true for the layer's own, false for the cache's
   */
  public boolean isLayerBudget() {
    return layerBudget;
  }
}
