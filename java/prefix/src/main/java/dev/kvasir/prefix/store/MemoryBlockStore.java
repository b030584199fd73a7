package dev.kvasir.prefix.store;

import dev.kvasir.file.BlockMemory;
import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import dev.kvasir.prefix.policy.EvictionPolicy;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;

/**
 * Blocks in memory of this process, outside of the heap. Never slow, so its own methods, which do not return futures,
 * are what tiers use; those of the interface are the same.
 */
public final class MemoryBlockStore implements BlockStore {

  private static final class Entry {
    final ByteBuffer bytes;
    final long since;
    boolean used;

    Entry(ByteBuffer bytes, long since) {
      this.bytes = bytes;
      this.since = since;
    }
  }

  private final long budget;
  private final long lifetime;
  private final LongSupplier clock;
  private final BlockMemory memory;
  private final EvictionPolicy<ChainHash> policy;
  private final Map<ChainHash, Entry> entries = new HashMap<>();
  private final Map<ChainHash, Integer> pins = new HashMap<>();
  private final Ages ages = new Ages();
  private long held;

  /**
   * An empty store.
   *
   * @param budget the most bytes that it holds
   * @param policy what goes first
   */
  public MemoryBlockStore(long budget, EvictionPolicy.Factory policy) {
    this(budget, policy, Duration.ZERO, System::nanoTime, BlockMemory.plain());
  }

  /**
   * An empty store whose blocks are forgotten after a time.
   *
   * @param budget the most bytes that it holds
   * @param policy what goes first
   * @param timeToLive how long blocks stay at most; zero for as long as there is room
   * @param clock nanoseconds, as {@link System#nanoTime}
   * @param memory where they are; closed with the store
   * @throws IllegalArgumentException if the budget is negative
   */
  public MemoryBlockStore(long budget, EvictionPolicy.Factory policy, Duration timeToLive, LongSupplier clock, BlockMemory memory) {
    if (budget < 0) {
      throw new IllegalArgumentException("a budget of " + budget + " bytes");
    }
    this.budget = budget;
    this.policy = policy.create(budget);
    this.lifetime = TimeUnit.NANOSECONDS.convert(timeToLive); // or the most that there can be
    this.clock = Objects.requireNonNull(clock, "clock");
    this.memory = Objects.requireNonNull(memory, "memory");
  }

  /**
   * Whether a block is there.
   *
   * @param name its name
   * @return whether it is
   */
  public synchronized boolean contains(ChainHash name) {
    return fresh(name) != null;
  }

  /**
   * A block, which counts as used.
   *
   * @param name its name
   * @return its bytes, or null
   */
  public synchronized @Nullable ByteBuffer get(ChainHash name) {
    Entry entry = fresh(name);
    if (entry == null) {
      return null;
    }
    use(name);
    return entry.bytes.duplicate();
  }

  /**
   * The blocks from the first name on, up to the first that is not there. All count as used, the last one first.
   *
   * @param names in the order of the text
   * @return their bytes
   */
  public synchronized List<ByteBuffer> longest(List<ChainHash> names) {
    List<ByteBuffer> found = new ArrayList<>();
    for (ChainHash name : names) {
      Entry entry = fresh(name);
      if (entry == null) {
        break;
      }
      found.add(entry.bytes.duplicate());
    }
    for (int i = found.size() - 1; i >= 0; i--) {
      use(names.get(i));
    }
    return found;
  }

  /**
   * Keeps blocks, in memory of this store. A block that is there stays as it is, and counts as used.
   *
   * @param blocks of one text, in its order
   * @return how many of them are there now
   */
  public int put(List<KvBlock> blocks) {
    return put(List.of(), blocks);
  }

  /**
   * Keeps blocks that stand behind others of their text, and goes without these before it goes without those. Keeps nothing
   * where it lacks one of those.
   *
   * @param before names of all blocks before these, or of none where they are elsewhere
   * @param blocks of one text, in its order
   * @return how many of them are there now
   */
  public int put(List<ChainHash> before, List<KvBlock> blocks) {
    Map<ChainHash, ByteBuffer> fresh = new HashMap<>();
    for (KvBlock block : blocks) { // before anybody has to wait for it
      if (block.bytes().remaining() <= budget && !contains(block.hash())) {
        fresh.put(block.hash(), memory.hold(block.bytes()));
      }
    }
    return keep(before, blocks, fresh);
  }

  private synchronized int keep(List<ChainHash> before, List<KvBlock> blocks, Map<ChainHash, ByteBuffer> fresh) {
    if (!before.stream().allMatch(name -> fresh(name) != null)) {
      return 0;
    }
    List<ChainHash> names = new ArrayList<>();
    // The last one first: it goes before those that it needs.
    for (int i = blocks.size() - 1; i >= 0; i--) {
      KvBlock block = blocks.get(i);
      names.add(block.hash());
      ByteBuffer bytes = fresh.get(block.hash());
      if (fresh(block.hash()) != null) {
        use(block.hash()); // or it would go before those that need it
      } else if (bytes != null) {
        add(block.hash(), bytes);
      }
    }
    for (int i = before.size() - 1; i >= 0; i--) {
      renew(before.get(i));
    }
    while (held > budget) {
      ChainHash victim = policy.evict();
      if (victim == null) {
        break; // all are pinned
      }
      drop(victim, true);
    }
    return (int) names.stream().filter(entries::containsKey).count();
  }

  /**
   * Keeps these blocks, those that are there and those that come, until {@link #unpin}. Pinned bytes may exceed the budget.
   *
   * @param names which
   */
  public synchronized void pin(Collection<ChainHash> names) {
    for (ChainHash name : names) {
      if (pins.merge(name, 1, Integer::sum) == 1) {
        policy.removed(name);
      }
    }
  }

  /**
   * Ends a {@link #pin}.
   *
   * @param names the same
   */
  public synchronized void unpin(Collection<ChainHash> names) {
    for (ChainHash name : names) {
      Integer left = pins.computeIfPresent(name, (same, count) -> count == 1 ? null : count - 1);
      Entry entry = entries.get(name);
      if (left == null && entry != null) {
        policy.added(name, entry.bytes.remaining());
      }
    }
    keep(List.of(), List.of(), Map.of());
  }

  /**
   * Forgets a block.
   *
   * @param name its name
   */
  public synchronized void remove(ChainHash name) {
    drop(name, false);
  }

  @Override
  public CompletableFuture<Integer> containsLongest(List<ChainHash> names, Duration deadline) {
    int count = 0;
    while (count < names.size() && contains(names.get(count))) {
      count++;
    }
    return CompletableFuture.completedFuture(count);
  }

  @Override
  public CompletableFuture<Integer> getMany(List<ChainHash> names, Duration deadline, Arrival arrival) {
    int count = 0;
    for (ByteBuffer bytes : longest(names)) {
      count++;
      if (!arrival.block(count - 1, bytes)) {
        break;
      }
    }
    return CompletableFuture.completedFuture(count);
  }

  @Override
  public CompletableFuture<Integer> putMany(List<KvBlock> blocks, Duration deadline) {
    return CompletableFuture.completedFuture(put(blocks));
  }

  @Override
  public CompletableFuture<Integer> putMany(List<ChainHash> before, List<KvBlock> blocks, Duration deadline) {
    return CompletableFuture.completedFuture(put(before, blocks));
  }

  @Override
  public CompletableFuture<Void> delete(List<ChainHash> names, Duration deadline) {
    names.forEach(this::remove);
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public synchronized Holdings holdings() {
    return ages.holdings(entries.size(), held);
  }

  @Override
  public synchronized void close() {
    List.copyOf(entries.keySet()).forEach(this::remove);
    memory.close();
  }

  private void add(ChainHash name, ByteBuffer bytes) {
    entries.put(name, new Entry(bytes, clock.getAsLong()));
    held += bytes.remaining();
    if (!pins.containsKey(name)) {
      policy.added(name, bytes.remaining());
    }
  }

  /** Somebody asked for it. */
  private void use(ChainHash name) {
    entries.get(name).used = true;
    policy.used(name);
  }

  /** More of its text has come: it goes after that, but what nobody asked for has not been asked for now. */
  private void renew(ChainHash name) {
    Entry entry = entries.get(name);
    if (entry.used) {
      policy.used(name);
    } else if (!pins.containsKey(name)) {
      policy.removed(name);
      policy.added(name, entry.bytes.remaining());
    }
  }

  private @Nullable Entry fresh(ChainHash name) {
    Entry entry = entries.get(name);
    if (entry != null && lifetime > 0 && clock.getAsLong() - entry.since > lifetime && !pins.containsKey(name)) {
      drop(name, true);
      return null;
    }
    return entry;
  }

  private void drop(ChainHash name, boolean evicted) {
    Entry entry = entries.remove(name);
    if (entry == null) {
      return;
    }
    policy.removed(name);
    held -= entry.bytes.remaining();
    if (evicted) {
      ages.evicted(clock.getAsLong() - entry.since);
    }
  }
}
