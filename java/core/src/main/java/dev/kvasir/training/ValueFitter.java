package dev.kvasir.training;

import dev.kvasir.codebook.ValueCodebook;
import dev.kvasir.internal.codebook.NativeValueFitter;

/**
 * Fits the {@link ValueCodebook} of a layer without an encoder, by alternating least squares: bits for the codebook,
 * then the codebook for the bits. Errors are in the units of the values.
 */
public final class ValueFitter extends CodebookTrainer<ValueCodebook> {

  private final int width;
  private final int codes;
  private final NativeValueFitter fitter;

  private ValueFitter(int width, int codes, NativeValueFitter fitter) {
    super(fitter, width);
    this.width = width;
    this.codes = codes;
    this.fitter = fitter;
  }

  /**
   * Makes a fitter of up to 30 steps.
   *
   * @param width kvHeads times headDim, a multiple of 16 in 16..65536
   * @param codes a multiple of 16 in 16..16384; width for 1 bit, twice as many for 2 bits
   * @return a new fitter, to be closed
   * @throws IllegalArgumentException if a number is out of range
   */
  public static ValueFitter of(int width, int codes) {
    return of(width, codes, 30);
  }

  /**
   * Makes a fitter.
   *
   * @param width kvHeads times headDim, a multiple of 16 in 16..65536
   * @param codes a multiple of 16 in 16..16384; width for 1 bit, twice as many for 2 bits
   * @param steps most steps, 1..10000
   * @return a new fitter, to be closed
   * @throws IllegalArgumentException if a number is out of range
   */
  public static ValueFitter of(int width, int codes, int steps) {
    NativeValueFitter fitter = new NativeValueFitter(width, codes);
    try {
      fitter.setSteps(steps);
      return new ValueFitter(width, codes, fitter);
    } catch (RuntimeException e) {
      fitter.close();
      throw e;
    }
  }

  /** {@inheritDoc} That of the least error. */
  @Override
  public synchronized ValueCodebook result() {
    float[] table = new float[width * codes];
    float[] thresholds = new float[codes];
    fitter.readTable(table);
    fitter.readThresholds(thresholds);
    return new ValueCodebook(width, codes, table, thresholds);
  }
}
