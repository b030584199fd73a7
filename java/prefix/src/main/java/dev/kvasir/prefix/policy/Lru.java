package dev.kvasir.prefix.policy;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/** What was not used for the longest time goes first. */
final class Lru<K> implements EvictionPolicy<K> {

  private final KeyQueue<K> queue = new KeyQueue<>();

  @Override
  public void added(K key, long bytes) {
    queue.add(key, bytes);
  }

  @Override
  public void used(K key) {
    queue.touch(key);
  }

  @Override
  public void removed(K key) {
    queue.remove(key);
  }

  @Override
  public @Nullable K evict() {
    Map.Entry<K, Long> oldest = queue.poll();
    return oldest == null ? null : oldest.getKey();
  }
}
