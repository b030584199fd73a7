package dev.kvasir.lab.report;

import java.util.List;

/**
 * What a model said with each of several caches, side by side.
 *
 * @param about what it did, in a sentence or two
 * @param tokens length of the text that it had read
 * @param questions what it was asked about the text
 * @param answers what is right
 * @param stepsRight what it means that a column has so many of the steps right
 * @param chained whether a step goes on from what was said in the one before, so that an error spoils the rest
 * @param steps what is right in each
 * @param columns what was said, one for each method
 */
public record Transcript(
    String about,
    int tokens,
    List<String> questions,
    List<String> answers,
    String stepsRight,
    boolean chained,
    List<String> steps,
    List<Column> columns) {

  /**
   * What was said with one method.
   *
   * @param method its name
   * @param bits per element, after the text
   * @param bytes of the cache, after the text
   * @param bitsPerByte how well the text was foreseen
   * @param answers to the questions
   * @param steps what it wrote in each
   */
  public record Column(
      String method, double bits, double bytes, double bitsPerByte, List<String> answers, List<String> steps) {}

  /** Questions that a column answers rightly. */
  public int right(Column column) {
    int right = 0;
    for (int i = 0; i < answers.size(); i++) {
      right += i < column.answers().size() && answers.get(i).equals(column.answers().get(i)) ? 1 : 0;
    }
    return right;
  }

  /** Steps that a column has right; before its first error, where they are chained. */
  public int rightSteps(Column column) {
    int right = 0;
    for (int i = 0; i < Math.min(steps.size(), column.steps().size()); i++) {
      if (steps.get(i).equals(column.steps().get(i))) {
        right++;
      } else if (chained) {
        break;
      }
    }
    return right;
  }
}
