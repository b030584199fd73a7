/** A user's module: what it names of the library is what the library exports. */
module example {
  requires dev.kvasir;
  requires dev.kvasir.micrometer;
  requires dev.kvasir.redis; // and dev.kvasir.prefix with it
  requires dev.kvasir.runner;
}
