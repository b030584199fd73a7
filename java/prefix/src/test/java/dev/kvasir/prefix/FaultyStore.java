package dev.kvasir.prefix;

import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import dev.kvasir.prefix.policy.Eviction;
import dev.kvasir.prefix.store.BlockStore;
import dev.kvasir.prefix.store.MemoryBlockStore;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import org.jspecify.annotations.Nullable;

/** A store that throws, fails, hangs, loses, lies and damages, as often as it is told to. */
final class FaultyStore implements BlockStore {

  final AtomicInteger gets = new AtomicInteger();
  final AtomicInteger delivered = new AtomicInteger();
  volatile double faults;
  volatile boolean down;
  volatile Runnable beforeAsking = () -> {};
  volatile @Nullable Error error;
  private final MemoryBlockStore good = new MemoryBlockStore(1L << 30, Eviction.LRU);
  private final List<ByteBuffer> seen = new ArrayList<>();
  private final Random random;

  FaultyStore(long seed) {
    this.random = new Random(seed);
  }

  private synchronized boolean fault() {
    return random.nextDouble() < faults;
  }

  private synchronized int pick(int bound) {
    return random.nextInt(bound);
  }

  private <T> CompletableFuture<T> spoiled(CompletableFuture<T> answer) {
    if (error != null) {
      throw error;
    }
    if (down) {
      throw new IllegalStateException("down");
    }
    if (!fault()) {
      return answer;
    }
    return switch (pick(3)) {
      case 0 -> new CompletableFuture<>(); // never
      case 1 -> CompletableFuture.failedFuture(new IllegalStateException("failed"));
      default -> throw new IllegalStateException("threw");
    };
  }

  @Override
  public CompletableFuture<Integer> containsLongest(List<ChainHash> names, Duration deadline) {
    beforeAsking.run();
    CompletableFuture<Integer> lie = CompletableFuture.completedFuture(pick(names.size() + 1));
    return spoiled(fault() ? lie : good.containsLongest(names, deadline));
  }

  @Override
  public CompletableFuture<Integer> getMany(List<ChainHash> names, Duration deadline, Arrival arrival) {
    gets.incrementAndGet();
    Arrival spoiling =
        (index, bytes) -> {
          delivered.incrementAndGet();
          return arrival.block(index, fault() ? damaged(bytes) : bytes);
        };
    return spoiled(CompletableFuture.completedFuture(0)).thenCompose(n -> good.getMany(names, deadline, spoiling));
  }

  private synchronized ByteBuffer damaged(ByteBuffer bytes) {
    ByteBuffer copy = ByteBuffer.allocate(bytes.remaining()).put(bytes.duplicate()).flip();
    switch (pick(5)) {
      case 0 -> copy.limit(pick(copy.limit()));
      case 1 -> copy.put(pick(copy.limit()), (byte) pick(256));
      case 2 -> copy.put(pick(256), (byte) pick(256));
      case 3 -> {
        return seen.get(pick(seen.size())).duplicate(); // another block
      }
      default -> copy.clear().limit(0);
    }
    return copy;
  }

  @Override
  public CompletableFuture<Integer> putMany(List<KvBlock> blocks, Duration deadline) {
    synchronized (this) {
      blocks.forEach(block -> seen.add(block.bytes().duplicate()));
    }
    return spoiled(fault() ? CompletableFuture.completedFuture(0) : good.putMany(blocks, deadline));
  }

  @Override
  public CompletableFuture<Void> delete(List<ChainHash> names, Duration deadline) {
    return spoiled(good.delete(names, deadline));
  }

  /** What is stored under a name, to be looked at or changed. */
  ByteBuffer stored(ChainHash name) {
    return good.get(name);
  }
}
