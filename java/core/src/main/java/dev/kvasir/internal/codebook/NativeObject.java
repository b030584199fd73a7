package dev.kvasir.internal.codebook;

import dev.kvasir.internal.Lifetime;
import dev.kvasir.internal.NativeCall;
import dev.kvasir.internal.NativeMemory;
import java.lang.ref.Reference;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Function;

/** One native object: kept open during calls, freed when closed or forgotten; its errors become exceptions. */
public abstract class NativeObject<T> implements AutoCloseable {

  private final T object;
  private final Lifetime lifetime;

  /** Neither function may refer to this object, or it would never be forgotten. */
  protected NativeObject(String name, Function<NativeMemory, T> create, Consumer<T> destroy) {
    T made = NativeCall.getWith(create);
    this.object = made;
    this.lifetime = new Lifetime(this, name, () -> destroy.accept(made));
  }

  public final void run(Consumer<T> work) {
    call(
        target -> {
          work.accept(target);
          return true;
        });
  }

  /** The same with memory for arrays, whose results are delivered. */
  public final void runWith(BiConsumer<T, NativeMemory> work) {
    call(
        target -> {
          NativeCall.runWith(memory -> work.accept(target, memory));
          return true;
        });
  }

  public final <R> R call(Function<T, R> work) {
    lifetime.acquire();
    try {
      return NativeCall.get(() -> work.apply(object));
    } finally {
      lifetime.release();
      Reference.reachabilityFence(this);
    }
  }

  @Override
  public void close() {
    lifetime.close();
  }
}
