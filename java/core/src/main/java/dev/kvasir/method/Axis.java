package dev.kvasir.method;

/** What the elements of one quantisation group have in common. */
public enum Axis {
  /** A group is one channel over consecutive tokens: right for keys, whose outliers stay in few channels. */
  CHANNEL(0),
  /** A group is one token over consecutive channels: right for values. */
  TOKEN(1);

  private final int code;

  Axis(int code) {
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
