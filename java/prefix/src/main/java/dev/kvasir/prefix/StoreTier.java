package dev.kvasir.prefix;

import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import dev.kvasir.prefix.store.BlockStore;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * A store as a tier: whatever it does, its calls end in time and with an answer. A failure, an answer that comes too late
 * and a pause after several of those all mean that nothing is there.
 */
final class StoreTier {

  final Tier tier;
  final TierCounters counters = new TierCounters();
  private final BlockStore store;
  private final Breaker breaker;

  StoreTier(Tier tier, BlockStore store, LongSupplier clock) {
    this.tier = tier;
    this.store = store;
    this.breaker = new Breaker(clock);
  }

  CompletableFuture<Integer> containsLongest(List<ChainHash> names, Duration deadline) {
    return guarded(deadline, 0, () -> store.containsLongest(names, deadline))
        .thenApply(count -> within(names.size(), count));
  }

  CompletableFuture<Integer> getMany(List<ChainHash> names, Duration deadline, BlockStore.Arrival arrival) {
    return guarded(deadline, 0, () -> store.getMany(names, deadline, arrival));
  }

  CompletableFuture<Integer> putMany(List<ChainHash> before, List<KvBlock> blocks, Duration deadline) {
    long bytes = blocks.stream().mapToLong(block -> block.bytes().remaining()).sum();
    return guarded(deadline, 0, () -> store.putMany(before, blocks, deadline))
        .thenApply(
            answer -> {
              int count = within(blocks.size(), answer);
              counters.bytesWritten.add(blocks.isEmpty() ? 0 : bytes * count / blocks.size());
              return count;
            });
  }

  /** What a store says, as far as it can be so. */
  private static int within(int most, @Nullable Integer count) {
    return count == null ? 0 : Math.max(0, Math.min(most, count));
  }

  /** A block is not what it should be. */
  void reject(ChainHash name, Duration deadline) {
    counters.rejected.increment();
    guarded(deadline, null, () -> store.delete(List.of(name), deadline));
  }

  TierStats stats() {
    return counters.stats(store.holdings());
  }

  void close() {
    store.close();
  }

  private <T> CompletableFuture<T> guarded(Duration deadline, T nothing, Supplier<CompletableFuture<T>> call) {
    Breaker.Call tried = breaker.begin();
    if (tried == null) {
      counters.skipped.increment();
      return CompletableFuture.completedFuture(nothing);
    }
    CompletableFuture<T> answer;
    try {
      // A copy, so that a store's own future is not completed by us.
      answer = call.get().thenApply(value -> value).orTimeout(Math.max(1, deadline.toMillis()), TimeUnit.MILLISECONDS);
    } catch (Error e) {
      tried.failed();
      counters.failures.increment();
      throw e;
    } catch (Throwable e) { // not all languages make stores declare what they throw
      answer = CompletableFuture.failedFuture(e);
    }
    return answer.handle(
        (value, failure) -> {
          if (failure == null) {
            tried.succeeded();
            return value;
          }
          tried.failed();
          counters.failures.increment();
          return nothing;
        });
  }
}
