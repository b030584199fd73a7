package dev.kvasir.prefix.policy;

import java.util.HashMap;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), by bytes: a small queue with a tenth of the
 * room, a main queue whose keys go round as often as they were used, up to three times, and the names of what left the
 * small queue lately.
 */
final class S3Fifo<K> implements EvictionPolicy<K> {

  private static final int MOST_USES = 3;

  private final long smallCapacity;
  private final long ghostCapacity;
  private final KeyQueue<K> small = new KeyQueue<>();
  private final KeyQueue<K> main = new KeyQueue<>();
  private final KeyQueue<K> ghosts = new KeyQueue<>();
  /** How often what is held was used since it came, or since it last went round. */
  private final Map<K, Integer> uses = new HashMap<>();

  S3Fifo(long capacity) {
    this.smallCapacity = capacity / 10;
    this.ghostCapacity = capacity - smallCapacity;
  }

  @Override
  public void added(K key, long bytes) {
    if (uses.containsKey(key)) {
      used(key);
      return;
    }
    uses.put(key, 0);
    (ghosts.remove(key) >= 0 ? main : small).add(key, bytes);
  }

  @Override
  public void used(K key) {
    uses.computeIfPresent(key, (same, count) -> Math.min(MOST_USES, count + 1));
  }

  @Override
  public void removed(K key) {
    if (uses.remove(key) != null && small.remove(key) < 0) {
      main.remove(key);
    }
  }

  @Override
  public @Nullable K evict() {
    while (!small.isEmpty() || !main.isEmpty()) {
      K victim = small.bytes() > smallCapacity || main.isEmpty() ? leaveSmall() : leaveMain();
      if (victim != null) {
        uses.remove(victim);
        return victim;
      }
    }
    return null;
  }

  private @Nullable K leaveSmall() {
    Map.Entry<K, Long> first = small.poll();
    if (first == null) {
      return null;
    }
    if (uses.get(first.getKey()) > 0) {
      uses.put(first.getKey(), 0);
      main.add(first.getKey(), first.getValue());
      return null;
    }
    ghosts.add(first.getKey(), first.getValue());
    while (ghosts.bytes() > ghostCapacity) {
      ghosts.poll();
    }
    return first.getKey();
  }

  private @Nullable K leaveMain() {
    Map.Entry<K, Long> first = main.poll();
    if (first == null) {
      return null;
    }
    int count = uses.get(first.getKey());
    if (count == 0) {
      return first.getKey();
    }
    uses.put(first.getKey(), count - 1);
    main.add(first.getKey(), first.getValue());
    return null;
  }
}
