package dev.kvasir;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.internal.CallListener;

/** Keeps a listener's failures from callers. */
final class ListenerGuard implements CallListener {

  private static final System.Logger LOGGER = System.getLogger("dev.kvasir");

  private final KvListener listener;

  ListenerGuard(KvListener listener) {
    this.listener = listener;
  }

  @Override
  public void appended(int layer, int tokens, long nanos) {
    guard(() -> listener.appended(layer, tokens, nanos));
  }

  @Override
  public void attended(int layer, int sequences, int tokens, long nanos) {
    guard(() -> listener.attended(layer, sequences, tokens, nanos));
  }

  @Override
  public void refused(BudgetExceededException refusal) {
    guard(() -> listener.refused(refusal));
  }

  private static void guard(Runnable call) {
    try {
      call.run();
    } catch (Throwable e) { // the call that it listened to has happened, whatever this is
      LOGGER.log(System.Logger.Level.WARNING, "a listener of a cache failed: " + e);
    }
  }
}
