package dev.kvasir.lab.sample;

/**
 * A stream of tokens to run, and what of it counts.
 *
 * @param set the text file or task that it belongs to
 * @param task whether it is a task: a prompt and its answer
 * @param tokens all of them; all but the last are run
 * @param scoredFrom the first token whose prediction of the next one counts
 */
public record Sample(String set, boolean task, int[] tokens, int scoredFrom) {

  /** Tokens that are run. */
  public int length() {
    return tokens.length - 1;
  }

  /** Predictions that count. */
  public int scored() {
    return length() - scoredFrom;
  }
}
