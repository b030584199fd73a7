package dev.kvasir.method;

import dev.kvasir.CodecChoice;

/** Where the codes of a quantisation group stand in its range. */
public enum Grid {
  /**
   * From the least element to the greatest, as in KIVI: both are exact, and the steps between are {@code range / (2^n -
   * 1)}.
   */
  ENDS,

  /**
   * In the middles of {@code 2^n} equal cells. The error is that of a step of {@code range / 2^n}: a quarter less at 2
   * bits, half at 1. Dropping the lowest bit of a code gives the code of the cell twice as large.
   */
  CELLS,

  /** {@link #CELLS} at 1 and 2 bits, where they were measured to be much better, {@link #ENDS} above. */
  BY_WIDTH;

  private static final int MOST_CELL_BITS = 2;

  /**
   * The number that native code knows it by, for good.
   *
   * @param bits bits of a code
   * @return 0 for {@link #ENDS}, 1 for {@link #CELLS}
   */
  public int code(int bits) {
    return this == CELLS || this == BY_WIDTH && bits <= MOST_CELL_BITS ? 1 : 0;
  }

  CodecChoice applyTo(CodecChoice choice) {
    return choice.with("grid", code(choice.bits()));
  }
}
