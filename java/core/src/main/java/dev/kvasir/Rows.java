package dev.kvasir;

import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Floats;
import dev.kvasir.internal.NativeMemory;
import dev.kvasir.internal.RowsTarget;
import dev.kvasir.internal.Shorts;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * Rows in a caller's memory, one for each token and head, channels side by side: in an array, a buffer, memory that is held for the time of a call, or on a device;
 * as {@code float}, float16 or bfloat16; dense or with strides.
 *
 * <pre>{@code
 * Rows.of(array)                                  // [tokens][heads][headDim]
 * Rows.of(shorts, ElementType.BFLOAT16)           // the same in 16 bits, from the buffer's position on
 * Rows.of(array).strides(headDim, tokens * headDim)  // heads first: [heads][tokens][headDim]
 * Rows.of(projections).strides(3 * querySize, headDim)  // the first third of each token's row
 * }</pre>
 *
 * <p>Immutable; the memory stays the caller's, and what calls do with it they say.
 */
public final class Rows {

  private final Object memory; // float[], FloatBuffer, ShortBuffer, HeldMemory or DeviceBuffer
  private final ElementType type;
  private final long tokenStride;
  private final long headStride;

  private Rows(Object memory, ElementType type, long tokenStride, long headStride) {
    this.memory = memory;
    this.type = type;
    this.tokenStride = tokenStride;
    this.headStride = headStride;
  }

  /**
   * Rows in an array, from its beginning on.
   *
   * @param array the memory
   * @return dense rows of {@code float}
   */
  public static Rows of(float[] array) {
    return new Rows(Objects.requireNonNull(array, "array"), ElementType.FLOAT32, 0, 0);
  }

  /**
   * Rows in a buffer, from its position on. A direct one is used in place (see {@link KvSequence}).
   *
   * @param buffer the memory, in native byte order
   * @return dense rows of {@code float}
   */
  public static Rows of(FloatBuffer buffer) {
    return new Rows(Objects.requireNonNull(buffer, "buffer"), ElementType.FLOAT32, 0, 0);
  }

  /**
   * Rows of 16-bit elements in a buffer, from its position on. A direct one is used in place (see {@link KvSequence}).
   *
   * @param buffer the memory, in native byte order
   * @param type what the bits mean: {@link ElementType#FLOAT16} or {@link ElementType#BFLOAT16}
   * @return dense rows
   * @throws IllegalArgumentException if the type has other than 16 bits
   */
  public static Rows of(ShortBuffer buffer, ElementType type) {
    Objects.requireNonNull(buffer, "buffer");
    Checks.require(type.bytes() == Short.BYTES, "the elements of a ShortBuffer are no " + type);
    return new Rows(buffer, type, 0, 0);
  }

  /**
   * Rows in memory that calls hold and use in place, whatever its size.
   *
   * @param memory the memory, from its beginning on, aligned to its elements
   * @param type what its elements are
   * @return dense rows
   */
  public static Rows of(HeldMemory memory, ElementType type) {
    return new Rows(Objects.requireNonNull(memory, "memory"), Objects.requireNonNull(type, "type"), 0, 0);
  }

  /**
   * Rows in memory of a device.
   *
   * @param buffer the memory
   * @return dense rows
   */
  public static Rows of(DeviceBuffer buffer) {
    return new Rows(buffer, buffer.type(), 0, 0);
  }

  /**
   * The same memory with strides: the row of token {@code t} and head {@code h} begins {@code t * tokenStride + h *
   * headStride} elements after the first. Either all heads of a token lie between it and the next one, or all tokens of
   * a head do; rows must not overlap, and calls refuse those that would. The stride of a dimension of size 1 does not
   * matter; both 0 mean dense.
   *
   * @param tokenStride elements from a token to the next, 0 or more
   * @param headStride elements from a head to the next, 0 or more
   * @return rows with these strides
   * @throws IllegalArgumentException if a stride is negative
   */
  public Rows strides(long tokenStride, long headStride) {
    Checks.requireNotNegative("tokenStride", tokenStride);
    Checks.requireNotNegative("headStride", headStride);
    return new Rows(memory, type, tokenStride, headStride);
  }

  /**
   * What the elements are.
   *
   * @return the type
   */
  public ElementType type() {
    return type;
  }

  /**
   * Whether the memory is a device's.
   *
   * @return whether it is a {@link DeviceBuffer}
   */
  public boolean onDevice() {
    return memory instanceof DeviceBuffer;
  }

  /** Refuses memory that is too short for so many rows, and for {@code written} ones memory that cannot be written. */
  void require(String name, long tokens, int heads, int width, boolean written) {
    long needed = elements(tokens, heads, width);
    if (memory instanceof float[] array) {
      Floats.require(name, array, needed);
    } else if (memory instanceof FloatBuffer buffer) {
      if (written) {
        Floats.requireWritable(name, buffer, needed);
      } else {
        Floats.require(name, buffer, needed);
      }
    } else if (memory instanceof ShortBuffer buffer) {
      Shorts.require(name, buffer, needed);
      Checks.require(!written || !buffer.isReadOnly(), name + " is read-only");
    } else if (memory instanceof HeldMemory held) {
      Checks.requireElements(name, held.bytes() / type.bytes(), needed);
      Checks.require(!written || !held.readOnly(), name + " is read-only");
    } else {
      ((DeviceBuffer) memory).require(name, needed);
    }
  }

  /** Where native code finds the rows, after {@link #require}. Strided results keep what lies between them. */
  RowsTarget target(NativeMemory room, long tokens, int heads, int width, boolean written) {
    int count = inPlace() ? 0 : (int) elements(tokens, heads, width);
    long address;
    if (memory instanceof DeviceBuffer buffer) {
      address = buffer.address();
    } else if (memory instanceof HeldMemory held) {
      address = held.address();
    } else if (!written) {
      address = room.address(memory, count);
    } else if (tokenStride == 0 && headStride == 0) {
      address = room.resultAddress(memory, count);
    } else {
      address = room.changedAddress(memory, count);
    }
    return new RowsTarget(address, type.code(), tokenStride, headStride);
  }

  /** {@link #target} for rows that are read and then written. */
  RowsTarget changed(NativeMemory room, long tokens, int heads, int width) {
    long address =
        memory instanceof HeldMemory held
            ? held.address()
            : room.changedAddress(memory, (int) elements(tokens, heads, width));
    return new RowsTarget(address, type.code(), tokenStride, headStride);
  }

  /** Runs a call while the memory of all these rows stays. */
  static void holding(Runnable call, @Nullable Rows... all) {
    Runnable held = call;
    for (Rows rows : all) {
      if (rows != null && rows.memory instanceof HeldMemory memory) {
        Runnable inner = held;
        held = () -> memory.hold(inner);
      }
    }
    held.run();
  }

  private boolean inPlace() {
    return onDevice() || memory instanceof HeldMemory;
  }

  /** From the first row's first to the last row's last. */
  private long elements(long tokens, int heads, int width) {
    if (tokenStride == 0 && headStride == 0) {
      return Checks.product(Checks.product(tokens, heads), width);
    }
    try {
      return Math.addExact(
          Math.addExact(Math.multiplyExact(tokens - 1, tokenStride), Math.multiplyExact(heads - 1L, headStride)),
          width);
    } catch (ArithmeticException e) {
      throw new IllegalArgumentException(
          "strides of " + tokenStride + " a token and " + headStride + " a head, for " + tokens + " tokens", e);
    }
  }

  @Override
  public String toString() {
    String strides = tokenStride == 0 && headStride == 0 ? "dense" : "strides " + tokenStride + " and " + headStride;
    return "Rows[" + type + ", " + strides + (onDevice() ? ", on a device]" : "]");
  }
}
