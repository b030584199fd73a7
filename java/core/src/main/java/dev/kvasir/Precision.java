package dev.kvasir;

/** How finely attention rounds queries and weights where it multiplies them with packed codes. */
public enum Precision {
  /** 15 bits: a normalised mean squared error of at most 1e-6 against attention on the decoded cache. */
  EXACT,
  /** 8 bits for the weights of values, where these suffice: at most 1e-4, with fewer instructions. */
  FAST
}
