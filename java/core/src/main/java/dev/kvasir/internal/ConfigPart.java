package dev.kvasir.internal;

import dev.kvasir.internal.jni.CacheConfig;

/** A part of a cache's settings that only its maker understands, such as a codebook. */
public interface ConfigPart {

  void applyTo(CacheConfig config, int layer);
}
