package dev.kvasir.prefix.simulate;

import dev.kvasir.prefix.policy.EvictionPolicy;
import java.util.HashMap;
import java.util.Map;

/** A tier without bytes: the policy of the library, and the names of what is held. */
final class ModelTier {

  private final EvictionPolicy<Long> policy;
  private final Map<Long, Integer> held = new HashMap<>();
  private final long capacity;
  private long blocks;

  /** Of so many blocks. */
  ModelTier(EvictionPolicy.Factory factory, long capacity) {
    this.policy = factory.create(capacity);
    this.capacity = capacity;
  }

  /** How many runs are there from one on, up to another. */
  int longest(Run[] text, int from, int to) {
    int count = 0;
    while (from + count < to && held.containsKey(text[from + count].name())) {
      count++;
    }
    return count;
  }

  /** They were used: the last one first, as in tiers of the library. */
  void use(Run[] text, int from, int to) {
    for (int i = to - 1; i >= from; i--) {
      policy.used(text[i].name());
    }
  }

  /** Adds those that are not there; returns how many blocks that were. */
  int add(Run[] text, int from, int to) {
    int added = 0;
    for (int i = to - 1; i >= from; i--) {
      if (held.putIfAbsent(text[i].name(), text[i].blocks()) == null) {
        policy.added(text[i].name(), text[i].blocks());
        added += text[i].blocks();
      }
    }
    blocks += added;
    while (blocks > capacity) {
      blocks -= held.remove(policy.evict());
    }
    return added;
  }
}
