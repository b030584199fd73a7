package dev.kvasir;

/**
 * Memory outside of Java's heap that somebody may free, and that stays while it is held. For adapters, such as {@code
 * kvasir-foreign} for memory segments, which has {@code Segments.rows}: an implementation that tells a wrong address or
 * size, or lets go of memory that is held, brings the JVM down.
 */
public interface HeldMemory {

  /**
   * Where it is. Asked for while it is held.
   *
   * @return the address of its first byte
   */
  long address();

  /**
   * How long it is.
   *
   * @return the number of its bytes
   */
  long bytes();

  /**
   * Whether it must not be written to.
   *
   * @return true if it is read-only
   */
  boolean readOnly();

  /**
   * Runs a call, during which the memory stays. What the call throws, this throws.
   *
   * @param call what needs the memory
   * @throws IllegalStateException if the memory is gone, or is not for this thread; the call has not been run then
   */
  void hold(Runnable call);
}
