package dev.kvasir.lab.evaluate;

/**
 * How one instance of a task was answered. The tokens of the right answer are fed whatever the model would have said,
 * so each prediction is judged given the right beginning; greedy decoding gives the right answer exactly where all of
 * them are right.
 *
 * @param set the task
 * @param tokens tokens of the answer
 * @param right how many of them were predicted
 * @param prefix how many before the first wrong one
 */
public record TaskScore(String set, int tokens, int right, int prefix) {

  /** Whether greedy decoding gives the answer. */
  public boolean exact() {
    return right == tokens;
  }
}
