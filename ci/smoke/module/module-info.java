/** A user's module: what it names of the library is what the library exports. */
module example {
  requires dev.kvasir;
}
