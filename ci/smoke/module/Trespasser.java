package example;

/** Must not compile in a module: what it names is the library's own affair. */
final class Trespasser {
  dev.kvasir.internal.Lifetime lifetime;
}
