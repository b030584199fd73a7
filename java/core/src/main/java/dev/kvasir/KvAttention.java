package dev.kvasir;

import dev.kvasir.internal.Checks;
import dev.kvasir.internal.NativeMerge;

/** What is done with results of attention. */
public final class KvAttention {

  private KvAttention() {}

  /**
   * Attention over all that two results saw, which must be different tokens: {@code outputs} and {@code logSums} become
   * it. The parts may be results of two caches ({@link AttendBatch#logSums(float[])}), or of a cache and of attention
   * computed elsewhere. Computed in double precision, rounded once. A log-sum of negative infinity says that nothing was
   * seen.
   *
   * <p>Learned sinks must count in exactly one of the parts ({@link AttendBatch#learnedSinks}).
   *
   * @param outputs {@code [tokens][heads][headDim]}, in memory of this machine
   * @param logSums {@code [tokens][heads]}
   * @param otherOutputs the shape of {@code outputs}
   * @param otherLogSums the shape of {@code logSums}
   * @param tokens 1 or more
   * @param heads 1 or more
   * @param headDim 1 or more
   * @throws IllegalArgumentException if a number is not positive, memory too short, or rows are on a device
   */
  public static void merge(
      Rows outputs,
      float[] logSums,
      Rows otherOutputs,
      float[] otherLogSums,
      int tokens,
      int heads,
      int headDim) {
    Checks.requirePositive("tokens", tokens);
    Checks.requirePositive("heads", heads);
    Checks.requirePositive("headDim", headDim);
    outputs.require("outputs", tokens, heads, headDim, true);
    otherOutputs.require("otherOutputs", tokens, heads, headDim, false);
    Checks.require(!outputs.onDevice() && !otherOutputs.onDevice(), "results on a device are merged there");
    long sums = Checks.product(tokens, heads);
    Checks.requireElements("logSums", logSums.length, sums);
    Checks.requireElements("otherLogSums", otherLogSums.length, sums);
    Rows.holding(
        () ->
            NativeMerge.run(
                memory -> outputs.changed(memory, tokens, heads, headDim),
                logSums,
                memory -> otherOutputs.target(memory, tokens, heads, headDim, false),
                otherLogSums,
                tokens,
                heads,
                headDim),
        outputs,
        otherOutputs);
  }
}
