/** Blocks in Redis or Valkey. */
@SuppressWarnings("requires-transitive-automatic") // the client has no descriptor
module dev.kvasir.redis {
  requires transitive dev.kvasir.prefix;
  requires transitive redis.clients.jedis;
  requires static org.jspecify;

  exports dev.kvasir.redis;
}
