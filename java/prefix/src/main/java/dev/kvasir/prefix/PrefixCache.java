package dev.kvasir.prefix;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import dev.kvasir.prefix.policy.Eviction;
import dev.kvasir.prefix.policy.EvictionPolicy;
import dev.kvasir.prefix.store.BlockStore;
import dev.kvasir.prefix.store.FolderBlockStore;
import dev.kvasir.prefix.store.MemoryBlockStore;
import dev.kvasir.prefix.store.StoreThreads;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import javax.crypto.SecretKey;
import org.jspecify.annotations.Nullable;

/**
 * Finds the longest known prefix of a prompt, wherever it is: in the cache itself, in memory, in files, in a store that
 * machines share. What comes from any of them is what was published, to the bit of attention; what is damaged, missing or
 * late is not reused, and nothing else happens to the request.
 *
 * <p>Tiers hold compressed blocks, and nothing is decoded on the way. A tier holds what those above it hold, too: what is
 * published is written to all of them in the background, so giving something up costs nothing.
 *
 * <p>For many threads. The cache stays the caller's, and is closed after this.
 */
public final class PrefixCache implements AutoCloseable {

  private final KvCache cache;
  private final Blocks blocks;
  private final LivePrefixes live;
  private final TierCounters liveCounters = new TierCounters();
  private final Tiers tiers;
  private final Flights flights = new Flights();
  private final Duration deadline;
  private final Executor executor;
  private final @Nullable ExecutorService ownThreads;
  private final LongAdder lookups = new LongAdder();
  private final LongAdder hits = new LongAdder();
  private final LongAdder tokensAsked = new LongAdder();
  private final LongAdder tokensReused = new LongAdder();
  private final LongAdder published = new LongAdder();
  private final LongAdder dropped = new LongAdder();
  private volatile boolean closed;

  private PrefixCache(Builder builder) throws IOException {
    this.cache = builder.cache;
    this.blocks = new Blocks(cache, builder.salt);
    this.deadline = builder.deadline;
    this.live = new LivePrefixes(blocks, builder.poolBytes, builder.policy, builder.timeToLive, builder.clock);
    MemoryBlockStore host =
        new MemoryBlockStore(
            builder.hostBytes, builder.policy, builder.timeToLive, builder.clock, cache.blockMemory(builder.hostBytes));
    List<StoreTier> stores = new ArrayList<>();
    if (builder.folder != null) {
      BlockStore folder = new FolderBlockStore(builder.folder, builder.folderBytes, blocks.mostBytes(), builder.policy);
      stores.add(new StoreTier(Tier.FOLDER, folder, builder.clock));
    }
    if (builder.remote != null) {
      stores.add(new StoreTier(Tier.REMOTE, builder.remote, builder.clock));
    }
    this.tiers = new Tiers(blocks, host, List.copyOf(stores), builder.publicKey, deadline);
    this.ownThreads = builder.executor == null ? StoreThreads.create("kvasir-prefix", 2) : null;
    this.executor = builder.executor == null ? ownThreads : builder.executor;
  }

  /**
   * A prefix cache over a cache.
   *
   * @param cache whose sequences are shared; {@link KvCache.Builder#model} should say whose keys and values they are
   * @return a builder
   */
  public static Builder builder(KvCache cache) {
    return new Builder(cache);
  }

  /**
   * The longest known prefix of a text, as a sequence of its own. One token at least is left for the model to read, so that
   * there are logits. Waits for stores no longer than the deadline; never throws on their account.
   *
   * @param request the text
   * @return a sequence, which may be empty, to be closed by the caller
   * @throws IllegalStateException if this or the cache is closed
   */
  public PrefixMatch lookup(PrefixRequest request) {
    requireOpen();
    Events.Lookup event = Events.beginLookup(request.tokens().length);
    PrefixMatch match = find(request);
    lookups.increment();
    tokensAsked.add(request.tokens().length);
    tokensReused.add(match.reusedTokens());
    if (match.reusedTokens() > 0) {
      hits.increment();
    }
    Events.end(event, match);
    return match;
  }

  /**
   * {@link #lookup} on the executor.
   *
   * @param request the text
   * @return the match to come; cancelled if this is closed before anybody had time. Where it ends otherwise first, as by a
   *     cancellation or a time that is over, what is found is closed
   */
  public CompletableFuture<PrefixMatch> lookupAsync(PrefixRequest request) {
    CompletableFuture<PrefixMatch> wanted = new CompletableFuture<>();
    CompletableFuture<Boolean> work =
        StoreThreads.call(
            executor,
            () -> {
              PrefixMatch match = lookup(request);
              boolean taken = wanted.complete(match);
              if (!taken) {
                match.close();
              }
              return taken;
            });
    work.whenComplete(
        (taken, failure) -> {
          if (failure != null) {
            wanted.completeExceptionally(failure);
          }
        });
    wanted.whenComplete((match, failure) -> work.cancel(false)); // what has not begun never does
    return wanted;
  }

  private PrefixMatch find(PrefixRequest request) {
    long end = System.nanoTime() + deadline.toNanos();
    int most = blocks.count(request.tokens().length - 1L);
    List<ChainHash> names = List.of();
    while (true) {
      LivePrefixes.@Nullable Found found = fromPool(request, most);
      int known = found == null ? 0 : found.blocks();
      if (known == most || System.nanoTime() - end > 0) {
        return matchOf(found);
      }
      if (names.isEmpty()) {
        names = blocks.names(request, most);
      }
      Flights.Flight other = flights.join(names.get(known));
      if (other == null) {
        Flights.Flight own = flights.begin(names.subList(known, most));
        if (own != null) {
          return load(request, names, found, own, end);
        }
        other = flights.join(names.get(known));
      }
      if (other != null && !brings(other, known, end)) {
        return matchOf(found);
      }
      close(found);
    }
  }

  private LivePrefixes.@Nullable Found fromPool(PrefixRequest request, int most) {
    long begun = System.nanoTime();
    LivePrefixes.Found found = live.find(request, most);
    int known = found == null ? 0 : found.blocks();
    liveCounters.answered(begun, most, known, known * live.blockBytes());
    return found;
  }

  /** Whether another load brought more than this many blocks. */
  private static boolean brings(Flights.Flight flight, int known, long end) {
    try {
      return flight.blocks.get(Math.max(1, end - System.nanoTime()), TimeUnit.NANOSECONDS) > known;
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      return false;
    } catch (TimeoutException | ExecutionException e) {
      return false;
    }
  }

  private PrefixMatch load(
      PrefixRequest request,
      List<ChainHash> names,
      LivePrefixes.@Nullable Found before,
      Flights.Flight flight,
      long end) {
    LivePrefixes.Found found = before;
    int reached = found == null ? 0 : found.blocks();
    try {
      // Between the look into the pool and the beginning of this flight another one may have landed.
      if (live.depth(request, names.size()) > reached) {
        close(found);
        found = live.find(request, names.size());
        reached = found == null ? 0 : found.blocks();
        if (reached == names.size()) {
          return matchOf(found);
        }
      }
      PrefixMatch longer = loaded(request, names, found, end);
      if (longer == null) {
        return matchOf(found);
      }
      reached = blocks.count(longer.reusedTokens());
      close(found);
      return longer;
    } catch (RuntimeException | Error e) {
      close(found);
      throw e;
    } finally {
      flights.end(flight, reached);
    }
  }

  private static void close(LivePrefixes.@Nullable Found found) {
    if (found != null) {
      found.sequence().close();
    }
  }

  /**
   * More than is in the pool; null where nothing is. What is there is gone on behind, and only what is missing is brought.
   * Where it cannot be gone on, because what is below was made with other side tables, all comes from below.
   */
  private @Nullable PrefixMatch loaded(
      PrefixRequest request, List<ChainHash> names, LivePrefixes.@Nullable Found found, long end) {
    int known = found == null ? 0 : found.blocks();
    if (found != null && !blocks.slides()) {
      Loading behind = new Loading(cache, tiers, tiers.gather(request, names, known, end), found);
      KvSequence sequence = behind.attach(this::makeRoom);
      if (sequence != null) {
        return kept(request, sequence, behind);
      }
      if (!behind.isOfOtherTables()) {
        return null;
      }
    }
    Loading whole = new Loading(cache, tiers, tiers.gather(request, names, 0, end), null);
    KvSequence sequence = whole.attach(this::makeRoom);
    if (sequence == null) {
      return null;
    }
    if (whole.count() <= known) {
      sequence.close();
      return null;
    }
    return kept(request, sequence, whole);
  }

  /** For blocks that do not fit. */
  private void makeRoom(BudgetExceededException error, int count) {
    live.release(Math.max(error.bytesNeeded(), live.blockBytes() * count));
  }

  private PrefixMatch kept(PrefixRequest request, KvSequence sequence, Loading loading) {
    try {
      keep(request, sequence, loading);
      return new PrefixMatch(sequence, blocks.tokens(loading.count()), loading.tokensByTier());
    } catch (RuntimeException | Error e) {
      sequence.close();
      throw e;
    }
  }

  /** What was loaded is nearer from now on. */
  private void keep(PrefixRequest request, KvSequence sequence, Loading loading) {
    List<KvBlock> brought = loading.blocks();
    live.measured(Publishing.bytesOf(brought), brought.size());
    try {
      live.add(request, sequence.fork(), loading.count());
    } catch (BudgetExceededException e) {
      live.release(e.bytesNeeded());
    }
    Map<Tier, Integer> from = loading.tokensByTier();
    if (!from.containsKey(Tier.FOLDER) && !from.containsKey(Tier.REMOTE)) {
      return;
    }
    background(
        () -> {
          tiers.host.put(brought);
          for (StoreTier store : tiers.stores) {
            if (from.containsKey(Tier.REMOTE) && store.tier == Tier.FOLDER) {
              tiers.put(store, request, List.of(), brought, loading.first());
            }
          }
          return brought.size();
        });
  }

  private PrefixMatch matchOf(LivePrefixes.@Nullable Found found) {
    if (found == null) {
      return new PrefixMatch(cache.newSequence(), 0, Map.of());
    }
    int tokens = blocks.tokens(found.blocks());
    return new PrefixMatch(found.sequence(), tokens, Map.of(Tier.POOL, tokens));
  }

  /**
   * Makes known what of a sequence is compressed by now. It is found from the next {@link #lookup} on, and written to the
   * tiers below in the background. The sequence may go on meanwhile, or end. Publish while a text grows, each turn say:
   * what is known already costs little, and layers that slide leave pages behind that a later publication lacks. Where
   * they lack what the last whole block would see, nothing is made known. Guesses are not ({@link KvSequence#guess}).
   *
   * @param sequence a sequence of the cache, whose positions were not moved
   * @param request its tokens from the beginning on; more or fewer than it holds
   * @return how many blocks were new to one of the tiers below, once they are there; -1 where nobody had time to bring them
   * @throws IllegalArgumentException if the sequence is one of another cache
   * @throws BudgetExceededException if what forks take of their own ({@link KvSequence#fork}) does not fit; nothing is made
   *     known then
   * @throws IllegalStateException if this, the sequence or the cache is closed
   */
  public CompletableFuture<Integer> publish(KvSequence sequence, PrefixRequest request) {
    requireOpen();
    if (sequence.cache() != cache) {
      throw new IllegalArgumentException(sequence + " is part of another cache");
    }
    int most = Math.min(blocks.count(request.tokens().length), blocks.whole(sequence));
    if (most == 0) {
      return CompletableFuture.completedFuture(0);
    }
    PrefixRequest kept = new PrefixRequest(request.tokens().clone(), request.tenant(), request.shared());
    KvSequence cut = sequence.fork();
    KvSequence copy;
    int count;
    try {
      dropGuesses(cut);
      count = Math.min(most, blocks.whole(cut)); // of what the sequence was when it was forked
      if (count == 0) {
        cut.close();
        return CompletableFuture.completedFuture(0);
      }
      cut.truncate(blocks.tokens(count));
      copy = cut.fork();
    } catch (IllegalArgumentException e) { // a sliding layer has left behind what the shorter one would see
      cut.close();
      return CompletableFuture.completedFuture(0);
    } catch (RuntimeException e) {
      cut.close();
      throw e;
    }
    live.add(kept, cut, count);
    Publishing publishing = new Publishing(tiers, kept, copy, count);
    return background(
        () -> {
          int fresh = publishing.run();
          if (publishing.exported() > 0) {
            live.measured(publishing.bytes(), publishing.exported());
          }
          published.add(fresh);
          return fresh;
        },
        copy::close);
  }

  /** They may go, and what is compressed with them waits in 16 bits. */
  private static void dropGuesses(KvSequence sequence) {
    try {
      sequence.keep();
    } catch (IllegalArgumentException e) { // there are none
      return;
    }
  }

  /**
   * Brings what is known of a text into memory of this machine, in the background: for a request that will come.
   *
   * @param request the text
   * @return how many of its blocks are there then; -1 where nobody had time
   * @throws IllegalStateException if this is closed
   */
  public CompletableFuture<Integer> prefetch(PrefixRequest request) {
    requireOpen();
    return background(
        () -> {
          List<ChainHash> names = blocks.names(request, blocks.count(request.tokens().length));
          ArrivingBlocks arriving = tiers.gather(request, names, 0, System.nanoTime() + deadline.toNanos());
          List<KvBlock> good = new ArrayList<>();
          for (KvBlock block : arriving) {
            Tier tier = arriving.tierOf(good.size());
            if (tier != Tier.HOST && !new BlockImage(block.bytes()).isWhole()) {
              tiers.reject(tier, block.hash());
              break;
            }
            good.add(block);
          }
          arriving.finish();
          return tiers.host.put(good);
        });
  }

  /**
   * A hint: this text will be asked for again, with more behind it, in about this time. It is brought into memory shortly
   * before, should it not be there.
   *
   * @param request the text
   * @param in when
   * @throws IllegalStateException if this is closed
   */
  public void expectReturn(PrefixRequest request, Duration in) {
    requireOpen();
    long millis = TimeUnit.MILLISECONDS.convert(in); // or as many as can be counted
    long early = Math.max(0, millis - Math.max(1000, millis / 10));
    CompletableFuture.delayedExecutor(early, TimeUnit.MILLISECONDS, executor)
        .execute(
            () -> {
              if (!closed) {
                prefetch(request);
              }
            });
  }

  /**
   * Keeps what is known of a text in the pool and in memory, and in memory also what of it will come.
   *
   * @param request the text
   * @return ends it when closed
   * @throws IllegalStateException if this is closed
   */
  public PrefixPin pin(PrefixRequest request) {
    requireOpen();
    int count = blocks.count(request.tokens().length);
    List<ChainHash> names = blocks.names(request, count);
    LivePrefixes.Held held = live.pin(request, count);
    tiers.host.pin(names);
    AtomicBoolean over = new AtomicBoolean();
    return () -> {
      if (!over.getAndSet(true)) {
        live.unpin(held);
        tiers.host.unpin(names);
      }
    };
  }

  /**
   * Gives pages back to the cache, for requests under way that its budget has no room for: what goes first, until so many
   * bytes are free that no other sequence shares. What is below the pool stays.
   *
   * @param bytes about how many
   */
  public void release(long bytes) {
    live.release(bytes);
  }

  /**
   * What was asked, found and moved so far.
   *
   * @return a snapshot
   */
  public PrefixStats stats() {
    Map<Tier, TierStats> byTier = new EnumMap<>(Tier.class);
    byTier.put(Tier.POOL, liveCounters.stats(live.holdings()));
    byTier.put(Tier.HOST, tiers.hostCounters.stats(tiers.host.holdings()));
    tiers.stores.forEach(store -> byTier.put(store.tier, store.stats()));
    return new PrefixStats(
        lookups.sum(), hits.sum(), tokensAsked.sum(), tokensReused.sum(), published.sum(), dropped.sum(), byTier);
  }

  /** Gives all back, and closes the stores. What is under way in the background ends first, or within some seconds. */
  @Override
  public void close() {
    if (closed) {
      return;
    }
    closed = true;
    if (ownThreads != null) {
      StoreThreads.end(ownThreads);
    }
    live.close();
    tiers.close();
  }

  private CompletableFuture<Integer> background(Supplier<Integer> work) {
    return background(work, () -> {});
  }

  private CompletableFuture<Integer> background(Supplier<Integer> work, Runnable otherwise) {
    AtomicBoolean taken = new AtomicBoolean();
    Runnable drop =
        () -> {
          if (!taken.getAndSet(true)) {
            dropped.increment();
            otherwise.run();
          }
        };
    try {
      CompletableFuture<Integer> result =
          StoreThreads.call(executor, () -> taken.getAndSet(true) ? -1 : work.get());
      result.whenComplete((count, failure) -> drop.run()); // cancelled before it began, by a close or by who waits
      return result;
    } catch (RejectedExecutionException e) {
      drop.run();
      return CompletableFuture.completedFuture(-1);
    } catch (RuntimeException | Error e) { // there is no thread to be had
      drop.run();
      throw e;
    }
  }

  private void requireOpen() {
    if (closed) {
      throw new IllegalStateException("the prefix cache is closed");
    }
  }

  /** Settings for a prefix cache. Not for use by several threads. */
  public static final class Builder {

    /** As many nanoseconds as can be counted, which is for ever. */
    private static final Duration LONGEST = Duration.ofNanos(Long.MAX_VALUE);

    private final KvCache cache;
    private byte[] salt = {};
    private long poolBytes = 1L << 30;
    private long hostBytes = 1L << 30;
    private @Nullable Path folder;
    private long folderBytes;
    private @Nullable BlockStore remote;
    private EvictionPolicy.Factory policy = Eviction.ARC;
    private Duration timeToLive = Duration.ZERO;
    private Duration deadline = Duration.ofSeconds(2);
    private @Nullable Executor executor;
    private @Nullable SecretKey publicKey;
    private LongSupplier clock = System::nanoTime;

    private Builder(KvCache cache) {
      this.cache = Objects.requireNonNull(cache, "cache");
    }

    /**
     * The most bytes of the cache that prefixes are kept in while nobody uses them: 1 GiB unless told otherwise. 0 keeps
     * none.
     *
     * @param bytes 0 or more
     * @return this builder
     */
    public Builder poolBytes(long bytes) {
      this.poolBytes = notNegative("poolBytes", bytes);
      return this;
    }

    /**
     * The most bytes of blocks in memory of this machine, outside of the heap: 1 GiB unless told otherwise.
     * {@code -XX:MaxDirectMemorySize} has to allow for it.
     *
     * @param bytes 0 or more
     * @return this builder
     */
    public Builder hostBytes(long bytes) {
      this.hostBytes = notNegative("hostBytes", bytes);
      return this;
    }

    /**
     * A folder for blocks, which outlive the process there.
     *
     * @param path the folder, which is made if it does not exist
     * @param bytes the most bytes in it
     * @return this builder
     */
    public Builder folder(Path path, long bytes) {
      this.folder = Objects.requireNonNull(path, "path");
      this.folderBytes = notNegative("bytes", bytes);
      return this;
    }

    /**
     * A store that machines share. It is closed with the prefix cache.
     *
     * @param store the store
     * @return this builder
     */
    public Builder remote(BlockStore store) {
      this.remote = Objects.requireNonNull(store, "store");
      return this;
    }

    /**
     * What full tiers give up: {@link Eviction#ARC} unless told otherwise.
     *
     * @param factory makes a policy for each tier
     * @return this builder
     */
    public Builder policy(EvictionPolicy.Factory factory) {
      this.policy = Objects.requireNonNull(factory, "factory");
      return this;
    }

    /**
     * How long blocks stay in the pool and in memory at most; for as long as there is room unless told otherwise.
     *
     * @param time more than zero
     * @return this builder
     */
    public Builder timeToLive(Duration time) {
      this.timeToLive = positive("timeToLive", time);
      return this;
    }

    /**
     * How long a lookup waits for stores at most: 2 seconds unless told otherwise.
     *
     * @param time more than zero
     * @return this builder
     */
    public Builder deadline(Duration time) {
      this.deadline = positive("deadline", time);
      return this;
    }

    /**
     * Who works in the background: two threads of its own unless told otherwise.
     *
     * @param threads runs what it is given, or refuses
     * @return this builder
     */
    public Builder executor(Executor threads) {
      this.executor = Objects.requireNonNull(threads, "threads");
      return this;
    }

    /**
     * What all names are made with, those of everybody's blocks included: installations with different salts do not meet in
     * a store that they share.
     *
     * @param bytes any
     * @return this builder
     */
    public Builder salt(byte[] bytes) {
      this.salt = bytes.clone();
      return this;
    }

    /**
     * Everybody's blocks leave this process encrypted, by AES-GCM. Tenants have keys of their own: {@link Tenant#key}.
     *
     * @param key of 16, 24 or 32 bytes, for AES
     * @return this builder
     * @throws IllegalArgumentException if the key is not one for AES
     */
    public Builder publicKey(SecretKey key) {
      this.publicKey = BlockSeal.checked(key);
      return this;
    }

    /** For tests: nanoseconds by which things get old. */
    Builder clock(LongSupplier nanos) {
      this.clock = nanos;
      return this;
    }

    /**
     * The prefix cache.
     *
     * @return a new one, to be closed by the caller before the cache
     * @throws IOException if the folder cannot be made or read
     * @throws IllegalStateException if the cache is closed
     */
    public PrefixCache build() throws IOException {
      return new PrefixCache(this);
    }

    private static long notNegative(String name, long bytes) {
      if (bytes < 0) {
        throw new IllegalArgumentException(name + " is " + bytes);
      }
      return bytes;
    }

    private static Duration positive(String name, Duration time) {
      if (time.isNegative() || time.isZero()) {
        throw new IllegalArgumentException(name + " is " + time);
      }
      return time.compareTo(LONGEST) < 0 ? time : LONGEST;
    }
  }
}
