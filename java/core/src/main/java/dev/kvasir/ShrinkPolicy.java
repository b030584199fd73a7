package dev.kvasir;

/** Which pages give up bits first where a budget runs out, for methods whose pages can shrink, such as {@code PmKvq}. */
public enum ShrinkPolicy {
  /**
   * The oldest of the pages with the most bits, and only as many as needed: where layers are alike, an append shrinks at
   * most three pages for each one that it adds.
   */
  OLDEST(0),
  /** All pages of the layer that needs the room, as in the paper. */
  LAYER(1);

  private final int code;

  ShrinkPolicy(int code) {
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
