package dev.kvasir.internal;

import dev.kvasir.error.KvException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.DoublePointer;
import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.IntPointer;
import org.bytedeco.javacpp.LongPointer;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.javacpp.ShortPointer;
import org.jspecify.annotations.Nullable;

/**
 * What native code sees of arrays and buffers during one call. Arrays, and buffers on the heap, are copied to native
 * memory and back by Java itself, which never crashes where there is none: the call then ends with {@link
 * KvException.Code#OUT_OF_MEMORY}. Direct buffers are handed over in place, once they have shown that their memory is
 * still there ({@link Buffers}).
 *
 * <p>Results reach arrays in {@link #deliver}, after the call; so arguments may overlap as they like.
 */
public final class NativeMemory implements AutoCloseable {

  /** Arguments of most calls fit in here, one after the other. */
  private static final int SLAB_BYTES = 128 << 10;
  /** Memory that waits for its next call; more than that is freed. */
  private static final int MOST_IDLE = 64;
  private static final int ALIGNMENT = 64;
  /** The most that one buffer shows of a block. */
  private static final int VIEW_BYTES = 1 << 30;

  private static final ConcurrentLinkedQueue<NativeMemory> IDLE = new ConcurrentLinkedQueue<>();
  private static final AtomicInteger IDLE_COUNT = new AtomicInteger();

  private final Block slab = new Block(SLAB_BYTES);
  private int used;
  private final List<Block> blocks = new ArrayList<>();
  private final List<Runnable> results = new ArrayList<>();
  private final List<Object> held = new ArrayList<>();

  private NativeMemory() {}

  /** Memory for one call, to be closed after it. */
  static NativeMemory open() {
    NativeMemory idle = IDLE.poll();
    if (idle == null) {
      return new NativeMemory();
    }
    IDLE_COUNT.decrementAndGet();
    return idle;
  }

  // What goes in ------------------------------------------------------------------------------------------------

  /** The first {@code count} elements. */
  public FloatPointer in(float[] array, int count) {
    Place place = take((long) count * Float.BYTES);
    place.each(Float.BYTES, count, (view, first, n) -> view.asFloatBuffer().put(array, first, n));
    return new Floats32(place.address());
  }

  public FloatPointer in(float[] array) {
    return in(array, array.length);
  }

  /** Null for null. */
  public @Nullable FloatPointer inOrNull(float @Nullable [] array) {
    return array == null ? null : in(array);
  }

  /** The first {@code count} elements from the position on. */
  public FloatPointer in(FloatBuffer buffer, int count) {
    FloatBuffer slice = buffer.slice(buffer.position(), count);
    if (Buffers.inPlace(slice)) {
      return new FloatPointer(slice);
    }
    Place place = take((long) count * Float.BYTES);
    place.each(Float.BYTES, count, (view, first, n) -> view.asFloatBuffer().put(0, slice, first, n));
    return new Floats32(place.address());
  }

  public ShortPointer in(ShortBuffer buffer, int count) {
    ShortBuffer slice = buffer.slice(buffer.position(), count);
    if (Buffers.inPlace(slice)) {
      return new ShortPointer(slice);
    }
    Place place = take((long) count * Short.BYTES);
    place.each(Short.BYTES, count, (view, first, n) -> view.asShortBuffer().put(0, slice, first, n));
    return new Shorts16(place.address());
  }

  public BytePointer in(byte[] array) {
    Place place = take(array.length);
    place.each(1, array.length, (view, first, n) -> view.put(array, first, n));
    return new Bytes8(place.address());
  }

  /** From the position to the limit. */
  public BytePointer in(ByteBuffer buffer) {
    ByteBuffer slice = buffer.slice();
    if (Buffers.inPlace(slice)) {
      held.add(slice);
      return new BytePointer(slice);
    }
    Place place = take(slice.remaining());
    place.each(1, slice.remaining(), (view, first, n) -> view.put(0, slice, first, n));
    return new Bytes8(place.address());
  }

  /** All of a direct buffer of the library's own, to be written. */
  BytePointer place(ByteBuffer own) {
    ByteBuffer whole = own.duplicate().clear();
    held.add(whole);
    return new BytePointer(whole);
  }

  public DoublePointer in(double[] array) {
    Place place = take((long) array.length * Double.BYTES);
    place.each(Double.BYTES, array.length, (view, first, n) -> view.asDoubleBuffer().put(array, first, n));
    return new Doubles64(place.address());
  }

  public IntPointer in(int[] array) {
    Place place = take((long) array.length * Integer.BYTES);
    place.each(Integer.BYTES, array.length, (view, first, n) -> view.asIntBuffer().put(array, first, n));
    return new Ints32(place.address());
  }

  public LongPointer in(long[] array) {
    Place place = take((long) array.length * Long.BYTES);
    place.each(Long.BYTES, array.length, (view, first, n) -> view.asLongBuffer().put(array, first, n));
    return new Longs64(place.address());
  }

  // What comes out ----------------------------------------------------------------------------------------------

  /** The first {@code count} elements, to be written. */
  public FloatPointer out(float[] array, int count) {
    Place place = take((long) count * Float.BYTES);
    results.add(
        () -> place.each(Float.BYTES, count, (view, first, n) -> view.asFloatBuffer().get(array, first, n)));
    return new Floats32(place.address());
  }

  public FloatPointer out(float[] array) {
    return out(array, array.length);
  }

  /** The first {@code count} elements from the position on, to be written. */
  public FloatPointer out(FloatBuffer buffer, int count) {
    FloatBuffer slice = buffer.slice(buffer.position(), count);
    if (Buffers.inPlace(slice)) {
      return new FloatPointer(slice);
    }
    Place place = take((long) count * Float.BYTES);
    copyBack(place, slice);
    return new Floats32(place.address());
  }

  public DoublePointer out(double[] array) {
    Place place = take((long) array.length * Double.BYTES);
    results.add(
        () ->
            place.each(Double.BYTES, array.length, (view, first, n) -> view.asDoubleBuffer().get(array, first, n)));
    return new Doubles64(place.address());
  }

  public BytePointer out(byte[] array) {
    Place place = take(array.length);
    results.add(() -> place.each(1, array.length, (view, first, n) -> view.get(array, first, n)));
    return new Bytes8(place.address());
  }

  // Rows of a float[], FloatBuffer or ShortBuffer -----------------------------------------------------------------

  /** Where the first {@code count} elements are, to be read. */
  public long address(Object rows, int count) {
    if (rows instanceof float[] array) {
      return in(array, count).address();
    }
    if (rows instanceof FloatBuffer buffer) {
      return addressOf(in(buffer, count), buffer);
    }
    return addressOf(in((ShortBuffer) rows, count), (ShortBuffer) rows);
  }

  /** The same, to be written: all of them will be. */
  public long resultAddress(Object rows, int count) {
    return written(rows, count, false);
  }

  /** The same, to be read and written: elements that are not written keep what they have. */
  public long changedAddress(Object rows, int count) {
    return written(rows, count, true);
  }

  private long written(Object rows, int count, boolean read) {
    if (rows instanceof float[] array) {
      return (read ? inOut(array, count) : out(array, count)).address();
    }
    if (rows instanceof FloatBuffer buffer) {
      if (!read) {
        return addressOf(out(buffer, count), buffer);
      }
      FloatPointer pointer = in(buffer, count);
      if (!Buffers.inPlace(buffer)) {
        copyBack(last, buffer.slice(buffer.position(), count));
      }
      return addressOf(pointer, buffer);
    }
    ShortBuffer buffer = (ShortBuffer) rows;
    ShortPointer pointer = in(buffer, count);
    if (!Buffers.inPlace(buffer)) {
      copyBack(last, buffer.slice(buffer.position(), count));
    }
    return addressOf(pointer, buffer);
  }

  /** What stands in the place at the end of the call goes to the buffer, all of it. */
  private void copyBack(Place place, FloatBuffer to) {
    int count = to.remaining();
    results.add(
        () -> place.each(Float.BYTES, count, (view, first, n) -> to.put(first, view.asFloatBuffer(), 0, n)));
  }

  private void copyBack(Place place, ShortBuffer to) {
    int count = to.remaining();
    results.add(
        () -> place.each(Short.BYTES, count, (view, first, n) -> to.put(first, view.asShortBuffer(), 0, n)));
  }

  /** The buffer stays reachable as long as this call's memory is in use. */
  private long addressOf(Pointer pointer, java.nio.Buffer buffer) {
    held.add(buffer);
    return pointer.address() + pointer.position() * pointer.sizeof();
  }

  /** A RowsView of native code. */
  Pointer rowsView(RowsTarget rows) {
    Place place = take(32);
    NativeBatch.writeRows(place.block().view(place.offset(), 32), 0, rows);
    return new Bytes8(place.address());
  }

  /** An AttendBatch of native code, and in `at[0]` where it is. */
  NativeBatch batch(int layer, long[] ids, Pointer[] at) {
    Place place = take(NativeBatch.BYTES);
    at[0] = new Bytes8(place.address());
    return new NativeBatch(this, place.block().view(place.offset(), NativeBatch.BYTES), layer, ids);
  }

  /** Elements that native code reads and changes. */
  public FloatPointer inOut(float[] array, int count) {
    FloatPointer pointer = in(array, count);
    Place place = last;
    results.add(
        () -> place.each(Float.BYTES, count, (view, first, n) -> view.asFloatBuffer().get(array, first, n)));
    return pointer;
  }

  public DoublePointer inOut(double[] array) {
    DoublePointer pointer = in(array);
    Place place = last;
    results.add(
        () ->
            place.each(Double.BYTES, array.length, (view, first, n) -> view.asDoubleBuffer().get(array, first, n)));
    return pointer;
  }

  /** After the call: results go where they are wanted. */
  void deliver() {
    results.forEach(Runnable::run);
  }

  @Override
  public void close() {
    results.clear();
    held.clear();
    blocks.forEach(Block::free);
    blocks.clear();
    used = 0;
    if (IDLE_COUNT.incrementAndGet() <= MOST_IDLE) {
      IDLE.add(this);
    } else {
      IDLE_COUNT.decrementAndGet();
      slab.free();
    }
  }

  // Where it lies -----------------------------------------------------------------------------------------------

  private Place last = new Place(slab, 0);

  private Place take(long bytes) {
    if (bytes <= SLAB_BYTES - used) {
      last = new Place(slab, used);
      used += (int) ((bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    } else {
      Block block = new Block(bytes);
      blocks.add(block);
      last = new Place(block, 0);
    }
    return last;
  }

  /** Elements {@code first .. first + count - 1}, and a view of where they lie. */
  private interface Copier {
    void copy(ByteBuffer view, int first, int count);
  }

  private record Place(Block block, int offset) {

    long address() {
      return block.memory.address() + offset;
    }

    void each(int elementBytes, int count, Copier copier) {
      int most = VIEW_BYTES / elementBytes;
      for (int first = 0; first < count; first += most) {
        int n = Math.min(most, count - first);
        copier.copy(block.view(offset + (long) first * elementBytes, n * elementBytes), first, n);
      }
    }
  }

  private static final class Block {

    final Pointer memory;
    /** All of it, where one buffer can show that. */
    private final @Nullable ByteBuffer whole;

    Block(long bytes) {
      Pointer taken = Pointer.malloc(Math.max(bytes, 1));
      if (taken == null || taken.isNull()) {
        throw new KvException(
            KvException.Code.OUT_OF_MEMORY, "no native memory for " + bytes + " bytes, the copy of an array", null);
      }
      memory = taken;
      try {
        whole = bytes <= VIEW_BYTES ? MemoryView.of(taken.address(), bytes) : null;
      } catch (Throwable e) { // no heap for the view, or no stack
        Pointer.free(taken);
        throw e;
      }
    }

    ByteBuffer view(long offset, int bytes) {
      ByteBuffer view =
          whole != null ? whole.slice((int) offset, bytes) : MemoryView.of(memory.address() + offset, bytes);
      return view.order(ByteOrder.nativeOrder());
    }

    void free() {
      Pointer.free(memory);
    }
  }

  // Pointers to addresses: JavaCPP's own constructors allocate, or ask native code for what is known here.

  private static final class Floats32 extends FloatPointer {
    Floats32(long address) {
      super((Pointer) null);
      this.address = address;
    }
  }

  private static final class Shorts16 extends ShortPointer {
    Shorts16(long address) {
      super((Pointer) null);
      this.address = address;
    }
  }

  private static final class Doubles64 extends DoublePointer {
    Doubles64(long address) {
      super((Pointer) null);
      this.address = address;
    }
  }

  private static final class Ints32 extends IntPointer {
    Ints32(long address) {
      super((Pointer) null);
      this.address = address;
    }
  }

  private static final class Longs64 extends LongPointer {
    Longs64(long address) {
      super((Pointer) null);
      this.address = address;
    }
  }

  private static final class Bytes8 extends BytePointer {
    Bytes8(long address) {
      super((Pointer) null);
      this.address = address;
    }
  }
}
