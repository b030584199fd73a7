package dev.kvasir;

/** The two halves of a cache. */
public enum Side {
  /** Keys, which queries are compared with. */
  KEYS(0),
  /** Values, which outputs are made of. */
  VALUES(1);

  private final int code;

  Side(int code) {
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
