package dev.kvasir.foreign;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT_UNALIGNED;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.lang.foreign.ValueLayout.JAVA_SHORT_UNALIGNED;

import dev.kvasir.ElementType;
import dev.kvasir.Rows;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;

/**
 * Memory segments as {@link Rows}, for JDK 22 and newer.
 *
 * <pre>{@code
 * try (Arena arena = Arena.ofShared()) {
 *   MemorySegment keys = arena.allocate(bytes, 64);
 *   ...
 *   cache.append(layer, sequences, tokens, Segments.rows(keys, ElementType.BFLOAT16), values);
 * }
 * }</pre>
 *
 * <p>Native segments are used in place, whatever their size. A call holds them: an Arena that is shared by threads cannot
 * be closed while one of its segments is in use ({@code close} throws then), and a segment whose Arena is closed, or that
 * is confined to another thread, is refused with {@link IllegalStateException}. Segments on the heap are copied.
 *
 * <p>Native access must be enabled for this module, or for the class path: {@code
 * --enable-native-access=dev.kvasir.foreign} or {@code ALL-UNNAMED}.
 */
public final class Segments {

  private Segments() {}

  /**
   * Rows in a segment, from its beginning on.
   *
   * @param segment the memory, in native byte order; aligned to the elements where it is native
   * @param type what its elements are
   * @return dense rows
   * @throws IllegalArgumentException if the segment is on the heap, and in no array of bytes or of such elements; of a
   *     read-only one, whose array cannot be seen, if its elements are known to be wider
   */
  public static Rows rows(MemorySegment segment, ElementType type) {
    if (segment.isNative()) {
      return Rows.of(new HeldSegment(segment), type);
    }
    boolean floats = type == ElementType.FLOAT32;
    if (segment.isReadOnly()) { // whose array nobody shows
      requireNarrow(segment, type);
      MemorySegment whole = segment.asSlice(0, segment.byteSize() / type.bytes() * type.bytes());
      return floats
          ? Rows.of(FloatBuffer.wrap(whole.toArray(JAVA_FLOAT_UNALIGNED)).asReadOnlyBuffer())
          : Rows.of(ShortBuffer.wrap(whole.toArray(JAVA_SHORT_UNALIGNED)).asReadOnlyBuffer(), type);
    }
    Object array = segment.heapBase().orElse(null);
    int first = Math.toIntExact(segment.address() / type.bytes());
    int count = Math.toIntExact(segment.byteSize() / type.bytes());
    if (array instanceof float[] elements && floats && segment.address() % Float.BYTES == 0) {
      return Rows.of(FloatBuffer.wrap(elements, first, count).slice());
    }
    if (array instanceof short[] elements && !floats && segment.address() % Short.BYTES == 0) {
      return Rows.of(ShortBuffer.wrap(elements, first, count).slice(), type);
    }
    if (array instanceof byte[]) {
      ByteBuffer bytes = segment.asByteBuffer().order(ByteOrder.nativeOrder());
      return floats ? Rows.of(bytes.asFloatBuffer()) : Rows.of(bytes.asShortBuffer(), type);
    }
    throw wrongArray(type);
  }

  /** An array is aligned as its elements are: where wider ones can be read, they are others. */
  private static void requireNarrow(MemorySegment segment, ElementType type) {
    if (segment.byteSize() < 2L * type.bytes()) {
      return;
    }
    try {
      if (type == ElementType.FLOAT32) {
        segment.get(JAVA_LONG, 0);
      } else {
        segment.get(JAVA_INT, 0);
      }
    } catch (IllegalArgumentException e) {
      return;
    }
    throw wrongArray(type);
  }

  private static IllegalArgumentException wrongArray(ElementType type) {
    return new IllegalArgumentException(
        "a segment on the heap must be in an array of bytes or of its elements, which are " + type);
  }
}
