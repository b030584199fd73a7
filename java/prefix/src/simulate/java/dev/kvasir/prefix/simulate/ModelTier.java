package dev.kvasir.prefix.simulate;

import dev.kvasir.prefix.policy.EvictionPolicy;
import java.util.HashSet;
import java.util.Set;

/** A tier without bytes: the policy of the library, and the names of what is held. */
final class ModelTier {

  private final EvictionPolicy<Long> policy;
  private final Set<Long> held = new HashSet<>();
  private final long capacity;

  /** Of so many blocks. */
  ModelTier(EvictionPolicy.Factory factory, long capacity) {
    this.policy = factory.create(capacity);
    this.capacity = capacity;
  }

  /** How many blocks are there from one on, up to another. */
  int longest(long[] blocks, int from, int to) {
    int count = 0;
    while (from + count < to && held.contains(blocks[from + count])) {
      count++;
    }
    return count;
  }

  /** They were used: the last one first, as in tiers of the library. */
  void use(long[] blocks, int from, int to) {
    for (int i = to - 1; i >= from; i--) {
      policy.used(blocks[i]);
    }
  }

  /** Adds those that are not there; returns how many that were. */
  int add(long[] blocks, int from, int to) {
    int added = 0;
    for (int i = to - 1; i >= from; i--) {
      if (held.add(blocks[i])) {
        policy.added(blocks[i], 1);
        added++;
      }
    }
    while (held.size() > capacity) {
      held.remove(policy.evict());
    }
    return added;
  }
}
