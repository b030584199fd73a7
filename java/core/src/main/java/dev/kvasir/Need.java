package dev.kvasir;

/**
 * What a method must be given to do what it promises. {@link KvCache.Builder#build} refuses what it can see to be missing;
 * what it cannot see, a cache says once, as a warning of the {@link System.Logger} {@code dev.kvasir}.
 */
public enum Need {
  /** Keys are appended before RoPE. {@link KvCache.Builder#keysBeforeRope} declares that they are. */
  KEYS_BEFORE_ROPE,

  /**
   * Queries are seen before the first page is compressed: attention over the prompt, computed by the cache or shown to
   * it by {@link KvSequence#observe}. Without, all channels count alike.
   */
  OBSERVED_QUERIES,

  /** Every layer has codebooks, which the method brings. */
  CODEBOOKS,

  /**
   * Keys are scaled ({@code KeyScaling.applyTo}). Without, a channel that is larger than the others takes their precision
   * away.
   */
  KEY_SCALING
}
