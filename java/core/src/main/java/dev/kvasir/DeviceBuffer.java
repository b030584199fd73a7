package dev.kvasir;

import dev.kvasir.internal.Checks;
import java.util.Objects;
import org.bytedeco.javacpp.Pointer;

/**
 * Memory of a device that somebody else owns, by its address: what a JVM program that already holds tensors on the GPU
 * hands to a cache of the backend {@code "cuda"}, so that nothing is copied. It must stay allocated until the work that
 * uses it is done, on the stream it was given with.
 *
 * @param address of the first element, a multiple of 16
 * @param type what the elements are
 * @param elements how many there are
 */
public record DeviceBuffer(long address, ElementType type, long elements) {

  /** What addresses must be a multiple of. */
  public static final int ALIGNMENT = 16;

  /**
   * Checks the description. Calls refuse an address that the device cannot reach; that all elements are there is for the
   * caller to know.
   *
   * @param address of the first element
   * @param type what the elements are
   * @param elements how many there are
   * @throws IllegalArgumentException if the address is 0 or not aligned, or the number negative
   */
  public DeviceBuffer {
    Objects.requireNonNull(type, "type");
    Checks.requireNotNegative("elements", elements);
    Checks.require(address != 0, "the address is null");
    if (address % ALIGNMENT != 0) {
      throw new IllegalArgumentException(
          "the address 0x" + Long.toHexString(address) + " is no multiple of " + ALIGNMENT);
    }
  }

  /**
   * The memory that a pointer of JavaCPP's CUDA presets points at, from its position on.
   *
   * @param pointer from {@code cudaMalloc} or the like
   * @param type what the elements are
   * @param elements how many there are from the position on
   * @return a buffer
   * @throws IllegalArgumentException if the pointer is null or not aligned, or the number negative
   */
  public static DeviceBuffer of(Pointer pointer, ElementType type, long elements) {
    return new DeviceBuffer(pointer.address() + pointer.position() * pointer.sizeof(), type, elements);
  }

  void require(String name, long needed) {
    Checks.requireElements(name, elements, needed);
  }
}
