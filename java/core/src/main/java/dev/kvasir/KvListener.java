package dev.kvasir;

import dev.kvasir.error.BudgetExceededException;

/**
 * Is told what calls of a cache do and how long they take, by {@link KvCache.Builder#listener}: what metrics are made of.
 *
 * <p>Methods are called on the threads that call the cache, after the work is done, so they should be quick. What they throw is
 * logged ({@code System.Logger dev.kvasir}) and changes nothing. Calls on a device's stream return before the work is done: their
 * times are those of the call.
 */
public interface KvListener {

  /**
   * Tokens were appended.
   *
   * @param layer the layer
   * @param tokens tokens of all sequences of the call
   * @param nanos what the call took
   */
  default void appended(int layer, int tokens, long nanos) {}

  /**
   * Attention was computed.
   *
   * @param layer the layer
   * @param sequences sequences of the call
   * @param tokens the most query tokens of one of them
   * @param nanos what the call took
   */
  default void attended(int layer, int sequences, int tokens, long nanos) {}

  /**
   * The budget did not hold what a call of a sequence needed, and the call was refused.
   *
   * @param refusal what the caller gets
   */
  default void refused(BudgetExceededException refusal) {}
}
