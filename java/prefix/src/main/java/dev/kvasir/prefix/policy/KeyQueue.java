package dev.kvasir.prefix.policy;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** Keys in the order in which they came, and the bytes of all of them. */
final class KeyQueue<K> {

  private final Map<K, Long> entries = new LinkedHashMap<>();
  private long bytes;

  /** At the end; one that is there already moves there. */
  void add(K key, long size) {
    remove(key);
    entries.put(key, size);
    bytes += size;
  }

  /** Its bytes, or -1 where it was not there. */
  long remove(K key) {
    Long size = entries.remove(key);
    if (size == null) {
      return -1;
    }
    bytes -= size;
    return size;
  }

  /** To the end, if it is there. */
  boolean touch(K key) {
    long size = remove(key);
    if (size < 0) {
      return false;
    }
    add(key, size);
    return true;
  }

  Map.@Nullable Entry<K, Long> poll() {
    Iterator<Map.Entry<K, Long>> all = entries.entrySet().iterator();
    if (!all.hasNext()) {
      return null;
    }
    Map.Entry<K, Long> first = all.next();
    Map.Entry<K, Long> copy = Map.entry(first.getKey(), first.getValue());
    all.remove();
    bytes -= copy.getValue();
    return copy;
  }

  boolean contains(K key) {
    return entries.containsKey(key);
  }

  boolean isEmpty() {
    return entries.isEmpty();
  }

  long bytes() {
    return bytes;
  }
}
