package dev.kvasir.prefix;

import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import dev.kvasir.prefix.store.BlockStore;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/** A store that keeps nothing, and always says the same number. */
record MiscountingStore(@Nullable Integer count) implements BlockStore {

  @Override
  public CompletableFuture<Integer> containsLongest(List<ChainHash> names, Duration deadline) {
    return CompletableFuture.completedFuture(count);
  }

  @Override
  public CompletableFuture<Integer> getMany(List<ChainHash> names, Duration deadline, Arrival arrival) {
    return CompletableFuture.completedFuture(count);
  }

  @Override
  public CompletableFuture<Integer> putMany(List<KvBlock> blocks, Duration deadline) {
    return CompletableFuture.completedFuture(count);
  }

  @Override
  public CompletableFuture<Void> delete(List<ChainHash> names, Duration deadline) {
    return CompletableFuture.completedFuture(null);
  }
}
