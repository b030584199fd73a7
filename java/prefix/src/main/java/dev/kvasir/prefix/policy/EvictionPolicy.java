package dev.kvasir.prefix.policy;

import org.jspecify.annotations.Nullable;

/**
 * Decides what a full tier gives up next. It is told what happens and holds nothing itself but keys. The blocks of a text
 * are worth less the further behind they are, since each needs all before it: whoever reports several at once begins
 * with the last. Not for use by several threads.
 *
 * @param <K> what names a thing, with {@code equals} and {@code hashCode}
 */
public interface EvictionPolicy<K> {

  /**
   * A thing is held from now on. One that was held already counts as used.
   *
   * @param key its name
   * @param bytes how much room it takes
   */
  void added(K key, long bytes);

  /**
   * A thing was asked for. Names that are not held are ignored.
   *
   * @param key its name
   */
  void used(K key);

  /**
   * A thing is held no longer, or must not be given up. Names that are not held are ignored.
   *
   * @param key its name
   */
  void removed(K key);

  /**
   * Takes out what has to go next.
   *
   * @return its name, or null where nothing is left
   */
  @Nullable K evict();

  /** Makes policies. {@link Eviction} has those that come with the library. */
  interface Factory {

    /**
     * A policy for a tier.
     *
     * @param capacity the bytes that the tier holds at most
     * @param <K> what names a thing
     * @return a new policy
     */
    <K> EvictionPolicy<K> create(long capacity);
  }
}
