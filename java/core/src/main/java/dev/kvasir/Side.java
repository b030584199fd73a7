package dev.kvasir;

/** The two halves of a cache. */
public enum Side {
  /** Keys, which queries are compared with. */
  KEYS,
  /** Values, which outputs are made of. */
  VALUES
}
