package dev.kvasir.prefix;

/** Where blocks are, the nearest first. */
public enum Tier {
  /** In the cache itself, on its device: pages are shared, and nothing is copied. */
  POOL,
  /** In memory of this machine, outside of the heap. */
  HOST,
  /** In files of this machine. */
  FOLDER,
  /** In a store that machines share. */
  REMOTE
}
