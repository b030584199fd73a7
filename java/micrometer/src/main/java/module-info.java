/** Meters of caches and prefixes for Micrometer. */
@SuppressWarnings({"module", "requires-transitive-automatic"}) // Micrometer has a name, and no descriptor.
module dev.kvasir.micrometer {
  requires transitive dev.kvasir;
  requires transitive micrometer.core;
  requires static dev.kvasir.prefix;
  requires static org.jspecify;

  exports dev.kvasir.micrometer;
}
