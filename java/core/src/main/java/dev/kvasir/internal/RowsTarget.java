package dev.kvasir.internal;

/**
 * A RowsView of native code: where rows are and how they lie.
 *
 * @param address of the first element
 * @param type the code of an ElementType
 * @param tokenStride elements; both 0 for dense
 * @param headStride the same
 */
public record RowsTarget(long address, int type, long tokenStride, long headStride) {
  /** No rows. */
  public static final RowsTarget NONE = new RowsTarget(0, 0, 0, 0);
}
