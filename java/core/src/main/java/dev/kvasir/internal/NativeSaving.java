package dev.kvasir.internal;

import dev.kvasir.internal.jni.Cache;
import dev.kvasir.internal.jni.Saving;
import java.nio.ByteBuffer;
import java.util.function.ToLongFunction;
import org.jspecify.annotations.Nullable;

/** A sequence as it was at one moment, to be written as bytes. Its cache stays open as long as it does. For one thread. */
public final class NativeSaving implements AutoCloseable {

  private static final int PAGE = 4096;

  private final Saving saving;
  private final Lifetime lifetime;
  private final String description;
  private final byte[] fingerprint;
  private final long blocks;
  private final long wholeBlocks;

  /** `of`: the cache's life, in which a use has begun that ends with this. */
  NativeSaving(Cache cache, long id, Lifetime of, String description, byte[] fingerprint) {
    Saving made = Saving.create(cache, id);
    this.saving = made;
    this.description = description;
    this.fingerprint = fingerprint;
    this.blocks = made.blocks();
    this.wholeBlocks = made.whole_blocks();
    this.lifetime =
        new Lifetime(
            this,
            "the saved sequence",
            () -> {
              Saving.destroy(made);
              of.release();
            });
  }

  public String description() {
    return description;
  }

  public byte[] fingerprint() {
    return fingerprint.clone();
  }

  public long blocks() {
    return blocks;
  }

  /** Those that all layers have, from the first on. */
  public long wholeBlocks() {
    return wholeBlocks;
  }

  /** The bytes of a file of it, token ids aside; pages that shrink meanwhile make it less. */
  public long bytes() {
    return call(
        memory -> {
          long bytes = aligned(description.length() + 512L);
          for (long block = 0; block < blocks; block++) {
            bytes += aligned(saving.write_block(block, null, null, 0));
          }
          return bytes + aligned(saving.write_state(null, 0)) + aligned(24 * blocks + 512) + 64;
        });
  }

  /** Into a direct buffer, from 0 on. Returns the bytes; where they are more than its capacity, nothing is written. */
  public int writeBlock(long block, byte @Nullable [] chain, ByteBuffer into) {
    return bounded(
        memory ->
            saving.write_block(
                block, chain == null ? null : memory.in(chain), memory.place(into), into.capacity()));
  }

  /** The same for the state, after all blocks. */
  public int writeState(ByteBuffer into) {
    return bounded(memory -> saving.write_state(memory.place(into), into.capacity()));
  }

  /** No buffer holds more than an int can count. */
  private int bounded(ToLongFunction<NativeMemory> work) {
    return Math.toIntExact(call(work));
  }

  private long call(ToLongFunction<NativeMemory> work) {
    lifetime.acquire();
    try (NativeMemory memory = NativeMemory.open()) {
      return work.applyAsLong(memory);
    } catch (RuntimeException e) {
      throw NativeErrors.translate(e);
    } finally {
      lifetime.release();
    }
  }

  private static long aligned(long bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
  }

  @Override
  public void close() {
    lifetime.close();
  }
}
