package dev.kvasir.internal.foreign;

import dev.kvasir.internal.NativeLibrary;
import dev.kvasir.internal.jni.Native;

/** A C function to be called with memory that is to be held: {@code void(const void* memory, void (*call)(void))}. */
public final class HeldCall {

  private HeldCall() {}

  /** Loads the native library if it is not loaded yet. */
  public static long address() {
    NativeLibrary.get();
    return Native.held_call_address();
  }
}
