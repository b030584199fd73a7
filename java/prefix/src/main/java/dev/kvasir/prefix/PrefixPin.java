package dev.kvasir.prefix;

/** Keeps a prefix where it is until it is closed. */
public interface PrefixPin extends AutoCloseable {

  /** Lets it go the way of all others. Closing again does nothing. */
  @Override
  void close();
}
