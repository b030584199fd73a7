package dev.kvasir;

/** How finely attention rounds queries and weights where it multiplies them with packed codes. */
public enum Precision {
  /** 15 bits: a normalised mean squared error of at most 1e-6 against attention on the decoded cache. */
  EXACT(0),
  /** 8 bits for the weights of values, where these suffice: at most 1e-4, with fewer instructions. */
  FAST(1);

  private final int code;

  Precision(int code) {
    this.code = code;
  }

  /**
   * The number that native code knows it by, for good.
   *
   * @return the code
   */
  public int code() {
    return code;
  }
}
