/** Blocks in Redis or Valkey: {@link dev.kvasir.redis.RedisBlockStore}. */
@NullMarked
package dev.kvasir.redis;

import org.jspecify.annotations.NullMarked;
