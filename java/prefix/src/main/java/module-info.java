/** Prefixes that many requests share, found again in tiers of stores. */
@SuppressWarnings("module") // Adapters of stores are built after this.
module dev.kvasir.prefix {
  requires transitive dev.kvasir;
  requires jdk.jfr;
  requires static org.jspecify;

  exports dev.kvasir.prefix;
  exports dev.kvasir.prefix.policy;
  exports dev.kvasir.prefix.store;
}
