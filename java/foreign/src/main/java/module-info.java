/** Memory segments of {@code java.lang.foreign} as rows of caches. */
module dev.kvasir.foreign {
  requires transitive dev.kvasir;
  requires static org.jspecify;

  exports dev.kvasir.foreign;
}
