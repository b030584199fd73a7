package dev.kvasir.internal;

import dev.kvasir.error.NativeUnavailableException;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/** What the system property {@code kvasir.backend} asks for. */
enum BackendRequest {
  /** The GPU library if it is there and loads, else the CPU's. */
  AUTO,
  /** Never the GPU. */
  CPU,
  /** The GPU or nothing. */
  CUDA;

  static BackendRequest parse(@Nullable String text) {
    if (text == null || text.isBlank()) {
      return AUTO;
    }
    try {
      return valueOf(text.strip().toUpperCase(Locale.ROOT));
    } catch (IllegalArgumentException e) {
      throw new NativeUnavailableException(
          NativeLibrary.BACKEND_PROPERTY + "=" + text + ": not auto, cpu or cuda", e);
    }
  }

  boolean wantsGpu() {
    return this != CPU;
  }

  boolean allowsCpu() {
    return this != CUDA;
  }

  @Override
  public String toString() {
    return name().toLowerCase(Locale.ROOT);
  }
}
