package dev.kvasir.internal;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.internal.jni.AttendBatch;
import dev.kvasir.internal.jni.Cache;
import dev.kvasir.internal.jni.CacheConfig;
import dev.kvasir.internal.jni.CacheEstimate;
import dev.kvasir.internal.jni.CacheStats;
import dev.kvasir.internal.jni.ImageMemory;
import dev.kvasir.internal.jni.Native;
import dev.kvasir.internal.jni.RowsView;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.Arrays;
import java.util.function.BiConsumer;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.LongStream;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.javacpp.ShortPointer;
import org.jspecify.annotations.Nullable;

/**
 * The native cache behind a KvCache: keeps it open during calls and turns its errors into exceptions. Arguments have
 * been checked by callers where a mistake would be more than an error: sizes of arrays and buffers.
 */
public final class NativeCache implements AutoCloseable {

  private final Cache cache;
  private final Lifetime lifetime;
  private final @Nullable CallListener listener;

  private NativeCache(Cache cache, @Nullable CallListener listener) {
    this.cache = cache;
    this.listener = listener;
    this.lifetime = new Lifetime(this, "the cache", () -> Cache.destroy(cache));
  }

  /** A cache of the given layers and whatever else the settings say. */
  public static NativeCache create(int layers, Consumer<CacheConfig> settings, @Nullable CallListener listener) {
    return configured(layers, settings, config -> new NativeCache(Cache.create(config), listener));
  }

  /** What a sequence of such a cache would take. */
  public static <T> T estimate(
      int layers, Consumer<CacheConfig> settings, long prompt, long decoded, Function<CacheEstimate, T> read) {
    return configured(
        layers,
        settings,
        config -> {
          CacheEstimate estimate = CacheEstimate.create(config, prompt, decoded);
          try {
            return read.apply(estimate);
          } finally {
            CacheEstimate.destroy(estimate);
          }
        });
  }

  private static <T> T configured(int layers, Consumer<CacheConfig> settings, Function<CacheConfig, T> use) {
    NativeLibrary.get();
    try {
      CacheConfig config = CacheConfig.create(layers);
      try {
        settings.accept(config);
        return use.apply(config);
      } finally {
        CacheConfig.destroy(config);
      }
    } catch (RuntimeException e) {
      throw NativeErrors.translate(e);
    }
  }

  /** Leaves its id in the array, at once: between the two nothing can fail. */
  public void newSequence(long[] made) {
    run(target -> made[0] = target.new_sequence());
  }

  /** The same. */
  public void fork(long id, long[] made) {
    run(target -> made[0] = target.fork(id));
  }

  public void truncate(long id, long length) {
    run(target -> target.truncate(id, length));
  }

  public void reserve(long id, long tokens) {
    run(target -> target.reserve(id, tokens));
  }

  public long rollback(long id) {
    return call(target -> target.rollback(id));
  }

  public void extend(long[] ids, long stream) {
    DeviceAddress s = new DeviceAddress(stream);
    runWith((target, memory) -> target.extend(memory.in(ids), ids.length, s));
  }

  public void guess(long id) {
    run(target -> target.guess(id));
  }

  public void keep(long id, int[] kept) {
    runWith((target, memory) -> target.keep(id, memory.in(kept), kept.length));
  }

  public void shift(long id, long first, long offset) {
    run(target -> target.shift(id, first, offset));
  }

  public long length(long id, int layer) {
    return call(target -> target.length(id, layer));
  }

  /**
   * What frees the sequence whose id is in the array by then, or 0 where there is none: now or when it is forgotten. Refers
   * to no NativeCache, or none would ever be forgotten.
   */
  public Runnable releaser(long[] id) {
    Lifetime life = lifetime;
    Cache target = cache;
    return () -> {
      if (id[0] != 0 && life.tryAcquire()) {
        try {
          target.release(id[0]);
        } finally {
          life.release();
        }
      }
    };
  }

  public void append(long id, int layer, float[] keys, float[] values, int count, int tokens) {
    append(
        layer,
        tokens,
        (target, memory) -> target.append(id, layer, memory.in(keys, count), memory.in(values, count), tokens));
  }

  public void append(long id, int layer, FloatBuffer keys, FloatBuffer values, int count, int tokens) {
    append(
        layer,
        tokens,
        (target, memory) -> target.append(id, layer, memory.in(keys, count), memory.in(values, count), tokens));
  }

  public void append(long id, int layer, ShortBuffer keys, ShortBuffer values, int count, int tokens, int type) {
    append(
        layer,
        tokens,
        (target, memory) -> {
          ShortPointer k = memory.in(keys, count);
          ShortPointer v = memory.in(values, count);
          if (type == Native.kBFloat16) {
            target.append_bf16(id, layer, k, v, tokens);
          } else {
            target.append_f16(id, layer, k, v, tokens);
          }
        });
  }

  /** Rows of many sequences, in memory of this machine or, with a stream, of the device. */
  public void append(
      int layer,
      long[] ids,
      long[] counts,
      Function<NativeMemory, RowsTarget> keys,
      Function<NativeMemory, RowsTarget> values,
      @Nullable Long stream) {
    append(
        layer,
        (int) LongStream.of(counts).sum(),
        (target, memory) -> {
          RowsView k = new RowsView(memory.rowsView(keys.apply(memory)));
          RowsView v = new RowsView(memory.rowsView(values.apply(memory)));
          if (stream == null) {
            target.append_rows(layer, memory.in(ids), memory.in(counts), ids.length, k, v);
          } else {
            target.append_rows_device(
                layer, memory.in(ids), memory.in(counts), ids.length, k, v, new DeviceAddress(stream));
          }
        });
  }

  public void attend(int layer, long[] ids, float[] queries, float[] outputs, int count, int written, int tokens) {
    attend(
        layer,
        ids,
        tokens,
        (target, memory) ->
            target.attend(
                layer,
                memory.in(ids),
                ids.length,
                tokens,
                memory.in(queries, count),
                memory.out(outputs, written)));
  }

  public void attend(int layer, long[] ids, FloatBuffer queries, FloatBuffer outputs, int count, int written, int tokens) {
    attend(
        layer,
        ids,
        tokens,
        (target, memory) ->
            target.attend(
                layer,
                memory.in(ids),
                ids.length,
                tokens,
                memory.in(queries, count),
                memory.out(outputs, written)));
  }

  /** A batch that `writer` fills in, with memory of the call. */
  public void attend(int layer, long[] ids, BiConsumer<NativeMemory, NativeBatch> writer) {
    runWith(
        (target, memory) -> {
          Pointer[] at = new Pointer[1];
          NativeBatch batch = memory.batch(layer, ids, at);
          writer.accept(memory, batch);
          int tokens = batch.mostTokens();
          Events.Attend event = Events.beginAttend(layer, ids.length, tokens);
          long start = begin();
          target.attend(new AttendBatch(at[0]));
          if (listener != null) {
            listener.attended(layer, ids.length, tokens, System.nanoTime() - start);
          }
          Events.end(event);
        });
  }

  /** Addresses on the device, and a stream. */
  public void append(long id, int layer, long keys, long values, int type, int tokens, long stream) {
    DeviceAddress k = new DeviceAddress(keys);
    DeviceAddress v = new DeviceAddress(values);
    DeviceAddress s = new DeviceAddress(stream);
    append(layer, tokens, (target, memory) -> target.append_device(id, layer, k, v, type, tokens, s));
  }

  /** The same. */
  public void attend(int layer, long[] ids, long queries, long outputs, int type, int tokens, long stream) {
    DeviceAddress q = new DeviceAddress(queries);
    DeviceAddress o = new DeviceAddress(outputs);
    DeviceAddress s = new DeviceAddress(stream);
    attend(
        layer,
        ids,
        tokens,
        (target, memory) ->
            target.attend_device(layer, memory.in(ids), ids.length, tokens, q, o, type, s));
  }

  public void observe(int layer, long[] ids, float[] queries, int count, int tokens) {
    runWith(
        (target, memory) ->
            target.observe(layer, memory.in(ids), ids.length, tokens, memory.in(queries, count)));
  }

  public void observe(int layer, long[] ids, FloatBuffer queries, int count, int tokens) {
    runWith(
        (target, memory) ->
            target.observe(layer, memory.in(ids), ids.length, tokens, memory.in(queries, count)));
  }

  public void read(long id, int layer, int side, long first, int tokens, float[] out) {
    runWith((target, memory) -> target.read(id, layer, side, first, tokens, memory.out(out)));
  }

  public long pageCount(long id, int layer) {
    return call(target -> target.page_count(id, layer));
  }

  public byte[] readPage(long id, int layer, long page, int side, int kvHead) {
    byte[] bytes = new byte[0];
    while (true) {
      byte[] target = bytes;
      int size =
          callWith(
              (cache, memory) ->
                  (int) cache.read_page(id, layer, page, side, kvHead, memory.out(target), target.length));
      if (size <= bytes.length) {
        return size == bytes.length ? bytes : Arrays.copyOf(bytes, size);
      }
      bytes = new byte[size];
    }
  }

  public float[] readTable(long id, int layer, int side, int kvHead, int headDim) {
    int capacity = 0;
    while (true) {
      int most = capacity;
      float[] vectors = new float[Math.multiplyExact(most, headDim)];
      int count =
          callWith(
              (target, memory) ->
                  (int) target.read_table(id, layer, side, kvHead, memory.out(vectors), most));
      if (count <= capacity) {
        return count == capacity ? vectors : Arrays.copyOf(vectors, count * headDim);
      }
      capacity = count;
    }
  }

  /** What a reader makes of a snapshot, which it must not keep. */
  public <T> T stats(Function<CacheStats, T> reader) {
    return call(
        target -> {
          CacheStats stats = target.stats();
          try {
            return reader.apply(stats);
          } finally {
            CacheStats.destroy(stats);
          }
        });
  }

  // Saving ------------------------------------------------------------------------------------------------------

  /** What the sequence is now. To be closed. */
  public NativeSaving save(long id) {
    String description = description();
    byte[] fingerprint = fingerprint();
    return held(target -> new NativeSaving(target, id, lifetime, description, fingerprint));
  }

  /** A sequence to come. To be closed. */
  public NativeRestoring restore() {
    return held(target -> new NativeRestoring(target, lifetime));
  }

  /** The same, behind the blocks of a sequence. */
  public NativeRestoring restoreBehind(long id) {
    return held(target -> new NativeRestoring(target, id, lifetime));
  }

  /** Memory that blocks are restored from in place; null where any memory is such. */
  public @Nullable MemoryPiece imageMemory(int bytes) {
    ImageMemory memory = call(target -> ImageMemory.create(target, bytes));
    if (memory == null) {
      return null;
    }
    return new MemoryPiece() {
      @Override
      public ByteBuffer view() {
        return MemoryView.of(memory.data().address(), bytes);
      }

      @Override
      public void free() {
        ImageMemory.destroy(memory);
      }
    };
  }

  public String description() {
    return call(Cache::description);
  }

  public byte[] fingerprint() {
    byte[] digest = new byte[Native.kDigestBytes()];
    runWith((target, memory) -> target.fingerprint(memory.out(digest)));
    return digest;
  }

  public long mostBlockBytes() {
    return call(Cache::most_block_bytes);
  }

  public long mostStateBytes() {
    return call(Cache::most_state_bytes);
  }

  /** What is made begins a use of the cache, and ends it. */
  private <T> T held(Function<Cache, T> make) {
    lifetime.acquire();
    try {
      return make.apply(cache);
    } catch (RuntimeException e) {
      lifetime.release();
      throw NativeErrors.translate(e);
    } catch (Error e) {
      lifetime.release();
      throw e;
    }
  }

  public boolean isClosed() {
    return lifetime.isClosed();
  }

  @Override
  public void close() {
    lifetime.close();
  }

  private void append(int layer, int tokens, BiConsumer<Cache, NativeMemory> work) {
    Events.Append event = Events.beginAppend(layer, tokens);
    long start = begin();
    runWith(work);
    if (listener != null) {
      listener.appended(layer, tokens, System.nanoTime() - start);
    }
    Events.end(event);
  }

  private void attend(int layer, long[] ids, int tokens, BiConsumer<Cache, NativeMemory> work) {
    Events.Attend event = Events.beginAttend(layer, ids.length, tokens);
    long start = begin();
    runWith(work);
    if (listener != null) {
      listener.attended(layer, ids.length, tokens, System.nanoTime() - start);
    }
    Events.end(event);
  }

  /** The time, where somebody wants to know it. */
  private long begin() {
    return listener == null ? 0 : System.nanoTime();
  }

  private void runWith(BiConsumer<Cache, NativeMemory> work) {
    callWith(
        (target, memory) -> {
          work.accept(target, memory);
          return true;
        });
  }

  /** A call with memory for arrays and buffers, whose results are delivered where it succeeds. */
  private <T> T callWith(BiFunction<Cache, NativeMemory, T> work) {
    return call(
        target -> {
          try (NativeMemory memory = NativeMemory.open()) {
            T result = work.apply(target, memory);
            memory.deliver();
            return result;
          }
        });
  }

  private void run(Consumer<Cache> work) {
    call(
        target -> {
          work.accept(target);
          return true;
        });
  }

  private <T> T call(Function<Cache, T> work) {
    lifetime.acquire();
    try {
      return work.apply(cache);
    } catch (RuntimeException e) {
      RuntimeException failure = NativeErrors.translate(e);
      if (listener != null && failure instanceof BudgetExceededException refusal) {
        listener.refused(refusal);
      }
      throw failure;
    } finally {
      lifetime.release();
      Reference.reachabilityFence(this);
    }
  }
}
