package dev.kvasir.internal;

import dev.kvasir.error.BudgetExceededException;

/** Is told of calls after they are over. */
public interface CallListener {

  void appended(int layer, int tokens, long nanos);

  void attended(int layer, int sequences, int tokens, long nanos);

  void refused(BudgetExceededException refusal);
}
