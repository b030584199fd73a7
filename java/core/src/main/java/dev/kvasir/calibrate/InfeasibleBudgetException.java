package dev.kvasir.calibrate;

/** A budget that not even the narrowest allowed widths fit in. */
public class InfeasibleBudgetException extends IllegalArgumentException {

  private static final long serialVersionUID = 1L;

  /** The budget. */
  private final long budgetBytes;
  /** What the narrowest widths take. */
  private final long leastBytes;

  /**
   * Makes an exception.
   *
   * @param budgetBytes the budget
   * @param leastBytes what the narrowest allowed widths take
   */
  public InfeasibleBudgetException(long budgetBytes, long leastBytes) {
    super(
        "a budget of " + budgetBytes + " bytes is " + (leastBytes - budgetBytes)
            + " bytes too small: the narrowest widths allowed take " + leastBytes);
    this.budgetBytes = budgetBytes;
    this.leastBytes = leastBytes;
  }

  /**
   * The budget.
   *
   * @return bytes
   */
  public long budgetBytes() {
    return budgetBytes;
  }

  /**
   * The smallest budget that would do.
   *
   * @return bytes
   */
  public long leastBytes() {
    return leastBytes;
  }

  /**
   * By how much the budget is too small.
   *
   * @return bytes, 1 or more
   */
  public long missingBytes() {
    return leastBytes - budgetBytes;
  }
}
