package dev.kvasir.prefix.policy;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003), by bytes. What comes again after it
 * was given up moves the share of the list that gave it up.
 */
final class Arc<K> implements EvictionPolicy<K> {

  private final long capacity;
  private final KeyQueue<K> once = new KeyQueue<>();
  private final KeyQueue<K> often = new KeyQueue<>();
  private final KeyQueue<K> onceGone = new KeyQueue<>();
  private final KeyQueue<K> oftenGone = new KeyQueue<>();
  /** The bytes that {@code once} should have. */
  private double share;

  Arc(long capacity) {
    this.capacity = capacity;
  }

  @Override
  public void added(K key, long bytes) {
    if (once.contains(key) || often.contains(key)) {
      used(key);
    } else if (onceGone.contains(key)) {
      double step = Math.max(1, oftenGone.bytes() / (double) onceGone.bytes());
      share = Math.min(capacity, share + step * bytes);
      onceGone.remove(key);
      often.add(key, bytes);
    } else if (oftenGone.contains(key)) {
      double step = Math.max(1, onceGone.bytes() / (double) oftenGone.bytes());
      share = Math.max(0, share - step * bytes);
      oftenGone.remove(key);
      often.add(key, bytes);
    } else {
      once.add(key, bytes);
    }
  }

  @Override
  public void used(K key) {
    long bytes = once.remove(key);
    if (bytes >= 0) {
      often.add(key, bytes);
    } else {
      often.touch(key);
    }
  }

  @Override
  public void removed(K key) {
    once.remove(key);
    often.remove(key);
  }

  @Override
  public @Nullable K evict() {
    boolean fromOnce = often.isEmpty() || once.bytes() > share;
    Map.Entry<K, Long> victim = (fromOnce && !once.isEmpty() ? once : often).poll();
    if (victim == null) {
      return null;
    }
    (fromOnce ? onceGone : oftenGone).add(victim.getKey(), victim.getValue());
    while (once.bytes() + onceGone.bytes() > capacity && !onceGone.isEmpty()) {
      onceGone.poll();
    }
    while (held() + onceGone.bytes() + oftenGone.bytes() > 2 * capacity && !oftenGone.isEmpty()) {
      oftenGone.poll();
    }
    return victim.getKey();
  }

  private long held() {
    return once.bytes() + often.bytes();
  }
}
