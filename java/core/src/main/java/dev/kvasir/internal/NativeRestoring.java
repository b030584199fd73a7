package dev.kvasir.internal;

import dev.kvasir.internal.jni.Cache;
import dev.kvasir.internal.jni.Restoring;
import java.nio.ByteBuffer;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** A sequence that is being restored. Its cache stays open as long as it does. For one thread. */
public final class NativeRestoring implements AutoCloseable {

  private final Restoring restoring;
  private final Lifetime lifetime;

  /** `of`: the cache's life, in which a use has begun that ends with this. */
  NativeRestoring(Cache cache, Lifetime of) {
    this(Restoring.create(cache), of);
  }

  /** Behind the blocks of a sequence. */
  NativeRestoring(Cache cache, long sequence, Lifetime of) {
    this(Restoring.create_behind(cache, sequence), of);
  }

  private NativeRestoring(Restoring made, Lifetime of) {
    this.restoring = made;
    this.lifetime =
        new Lifetime(
            this,
            "the sequence to restore",
            () -> {
              Restoring.destroy(made);
              of.release();
            });
  }

  /** From the position to the limit. chain: what its name must be, or null. */
  public void addBlock(ByteBuffer image, byte @Nullable [] chain) {
    call(
        memory -> {
          ByteBuffer own = image.slice(); // whose limit nobody else moves
          restoring.add_block(memory.in(own), own.remaining(), chain == null ? null : memory.in(chain));
          return true;
        });
  }

  public void setState(ByteBuffer image) {
    call(
        memory -> {
          ByteBuffer own = image.slice();
          restoring.set_state(memory.in(own), own.remaining());
          return true;
        });
  }

  /** Leaves the id of the sequence in the array, at once: between the two nothing can fail. */
  public void finish(long[] made) {
    call(memory -> made[0] = restoring.finish());
  }

  private <T> T call(Function<NativeMemory, T> work) {
    lifetime.acquire();
    try (NativeMemory memory = NativeMemory.open()) {
      return work.apply(memory);
    } catch (RuntimeException e) {
      throw NativeErrors.translate(e);
    } finally {
      lifetime.release();
    }
  }

  @Override
  public void close() {
    lifetime.close();
  }
}
