package dev.kvasir.prefix;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.file.ChainHash;
import dev.kvasir.prefix.policy.EvictionPolicy;
import dev.kvasir.prefix.store.Holdings;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;

/**
 * The first tier: sequences that are kept in the cache, each cut after a whole block, in a tree by the tokens of their
 * blocks and whose they are. What is found is forked, so pages are shared by all. A block that several of them begin with
 * counts once.
 *
 * <p>The tree compares tokens and hashes no names, so that a look at it costs less than a look anywhere else.
 */
final class LivePrefixes {

  private static final class Node {
    final @Nullable Node parent;
    final @Nullable BlockKey key;
    final int depth;
    final Map<BlockKey, Node> children = new HashMap<>(2);
    /** The sequence that ends here, and one that ends here or below. */
    @Nullable Held held;

    @Nullable Held any;

    Node(@Nullable Node parent, @Nullable BlockKey key, int depth) {
      this.parent = parent;
      this.key = key;
      this.depth = depth;
    }
  }

  /**
   * What a prefix is called, whenever it comes: policies remember what was given up. The name of its last block does
   * not say how many of those before are everybody's.
   */
  private record Name(ChainHash last, int shared) {}

  /** A sequence that is kept. */
  static final class Held {
    private final Name name;
    private final KvSequence sequence;
    private final Node end;
    private final long since;
    private final long bytes;
    private int pins;

    private Held(Name name, KvSequence sequence, Node end, long since, long bytes) {
      this.name = name;
      this.sequence = sequence;
      this.end = end;
      this.since = since;
      this.bytes = bytes;
    }
  }

  /** What was found: a sequence of its own for who asked. */
  record Found(KvSequence sequence, int blocks) {}

  private final Blocks blocks;
  private final long budget;
  private final long lifetime;
  private final boolean slides;
  private final LongSupplier clock;
  private final EvictionPolicy<Name> policy;
  private final Map<Name, Held> all = new HashMap<>();
  private final Node root = new Node(null, null, 0);
  private long count;
  private volatile long blockBytes;
  private long evicted;
  private double evictedNanos;
  private boolean closed;

  LivePrefixes(
      Blocks blocks, long budget, EvictionPolicy.Factory policy, Duration timeToLive, LongSupplier clock) {
    this.blocks = blocks;
    this.budget = budget;
    this.lifetime = timeToLive.toNanos();
    this.slides = blocks.slides();
    this.clock = clock;
    this.policy = policy.create(budget);
    this.blockBytes = blocks.bytesIn16Bits(KvCache.PAGE_TOKENS);
  }

  /** What a block takes, as far as is known: until some were seen, what it takes in 16 bits. */
  long blockBytes() {
    return blockBytes;
  }

  /** So many blocks were seen, of so many bytes: all count as these from now on. */
  void measured(long bytes, int blockCount) {
    blockBytes = bytes / blockCount;
  }

  /** A fork of what is known of a text, cut to this many blocks at most; null where nothing is. */
  synchronized @Nullable Found find(PrefixRequest request, int most) {
    for (Node node = deepest(request, most); node != root && node != null; node = node.parent) {
      Held held = node.any;
      if (held == null || isOver(held)) {
        continue;
      }
      Found found = fork(held, node.depth);
      if (found != null) {
        policy.used(held.name);
        return found;
      }
    }
    return null;
  }

  /** How many blocks are known, without touching anything. */
  synchronized int depth(PrefixRequest request, int most) {
    Node node = deepest(request, most);
    return node.any == null ? 0 : node.depth;
  }

  /** Keeps a sequence, of so many blocks exactly, which is this tier's from now on. */
  void add(PrefixRequest request, KvSequence sequence, int length) {
    if (budget == 0 || length == 0) {
      sequence.close();
      return;
    }
    // Made before the lock is taken: others look meanwhile.
    ChainHash last = blocks.names(request, length).get(length - 1);
    add(request, sequence, length, new Name(last, blocks.shared(request, length)));
  }

  private synchronized void add(PrefixRequest request, KvSequence sequence, int length, Name name) {
    if (closed) {
      sequence.close();
      return;
    }
    Held before = all.get(name);
    if (before != null) {
      isOver(before); // then this one comes in its place
    }
    Node node = root;
    for (int i = 0; i < length; i++) {
      BlockKey key = keyOf(request, i);
      Node next = node.children.get(key);
      if (next == null) {
        next = new Node(node, key.copy(), i + 1);
        node.children.put(next.key, next);
        count++;
      }
      node = next;
    }
    if (node.held != null) {
      policy.used(name);
      sequence.close();
      return;
    }
    Held held = new Held(name, sequence, node, clock.getAsLong(), length * blockBytes);
    node.held = held;
    all.put(name, held);
    policy.added(name, held.bytes);
    for (Node each = node; each != null; each = each.parent) {
      each.any = held;
    }
    if (!slides) { // what is longer serves for what is shorter
      for (Node each = node.parent; each != null; each = each.parent) {
        if (each.held != null && each.held.pins == 0) {
          drop(each.held);
        }
      }
    }
    makeRoom(budget);
  }

  /** Gives up what goes first until this many bytes fewer are held, or nothing is left to give up. */
  synchronized void release(long fewer) {
    makeRoom(Math.max(0, bytes() - fewer));
  }

  /** Keeps what is known of a text; null where nothing is. */
  synchronized @Nullable Held pin(PrefixRequest request, int most) {
    Node node = deepest(request, most);
    Held held = node == root ? null : node.any; // below the root is anybody's
    if (held != null && held.pins++ == 0) {
      policy.removed(held.name);
    }
    return held;
  }

  synchronized void unpin(@Nullable Held held) {
    if (held != null && --held.pins == 0 && held.end.held == held) {
      policy.added(held.name, held.bytes);
      makeRoom(budget);
    }
  }

  synchronized Holdings holdings() {
    long age = evicted == 0 ? 0 : (long) (evictedNanos / evicted);
    return new Holdings(count, bytes(), evicted, Duration.ofNanos(age));
  }

  synchronized void close() {
    closed = true;
    all.values().forEach(held -> held.sequence.close());
    root.children.clear();
    root.any = null;
    all.clear();
    count = 0;
  }

  private Node deepest(PrefixRequest request, int most) {
    Node node = root;
    while (node.depth < most) {
      Node next = node.children.get(keyOf(request, node.depth));
      if (next == null) {
        break;
      }
      node = next;
    }
    return node;
  }

  private BlockKey keyOf(PrefixRequest request, int block) {
    int end = blocks.end(block);
    return new BlockKey(request.tokens(), blocks.begin(block), end, request.ownerOf(end));
  }

  private @Nullable Found fork(Held held, int length) {
    KvSequence fork;
    try {
      fork = held.sequence.fork();
    } catch (BudgetExceededException e) {
      return null;
    }
    try {
      if (held.end.depth > length) {
        fork.truncate(blocks.tokens(length));
      }
      return new Found(fork, length);
    } catch (IllegalArgumentException e) { // a sliding layer has left behind what the shorter one would see
      fork.close();
      return null;
    }
  }

  private boolean isOver(Held held) {
    if (lifetime > 0 && held.pins == 0 && clock.getAsLong() - held.since > lifetime) {
      giveUp(held);
      return true;
    }
    return false;
  }

  private long bytes() {
    return count * blockBytes;
  }

  private void makeRoom(long most) {
    while (bytes() > most) {
      Held victim = all.get(policy.evict());
      if (victim == null) {
        return;
      }
      giveUp(victim);
    }
  }

  private void giveUp(Held held) {
    evicted++;
    evictedNanos += clock.getAsLong() - held.since;
    drop(held);
  }

  private void drop(Held held) {
    policy.removed(held.name);
    all.remove(held.name);
    held.sequence.close();
    held.end.held = null;
    for (Node node = held.end; node != null; ) {
      Node parent = node.parent;
      if (parent != null && node.held == null && node.children.isEmpty()) {
        parent.children.remove(node.key);
        count--;
      }
      if (node.any == held) {
        node.any = node.held != null ? node.held : node.children.values().stream().findAny().map(each -> each.any).orElse(null);
      }
      node = parent;
    }
  }
}
