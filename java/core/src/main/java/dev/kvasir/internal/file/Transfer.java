package dev.kvasir.internal.file;

import java.util.function.BooleanSupplier;

/** Who follows the bytes of a file on their way: told of them, and asked before every image whether to stop. */
public record Transfer(Listener listener, BooleanSupplier cancelled) {

  /** Bytes so far, and of all, or -1. */
  public interface Listener {
    void moved(long bytes, long total);
  }
}
