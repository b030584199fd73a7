package dev.kvasir.prefix.policy;

/** The policies that come with the library. {@code docs/prefix.md} says what was measured of them. */
public enum Eviction implements EvictionPolicy.Factory {
  /** What was not used for the longest time goes first. */
  LRU {
    @Override
    public <K> EvictionPolicy<K> create(long capacity) {
      return new Lru<>();
    }
  },
  /**
   * Three queues: what is new waits in a small one, and gets into the large one if it is asked for meanwhile, or again soon
   * after it went. So what is asked for once does not push out what is asked for often.
   */
  S3_FIFO {
    @Override
    public <K> EvictionPolicy<K> create(long capacity) {
      return new S3Fifo<>(capacity);
    }
  },
  /** Two lists by recency, of what was used once and of what was used more often, whose shares adapt to what was missed. */
  ARC {
    @Override
    public <K> EvictionPolicy<K> create(long capacity) {
      return new Arc<>(capacity);
    }
  }
}
