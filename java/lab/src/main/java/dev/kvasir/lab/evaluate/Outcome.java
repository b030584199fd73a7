package dev.kvasir.lab.evaluate;

import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * What an evaluation has found so far.
 *
 * @param model the model's name
 * @param about its shape in words
 * @param prompt how prompts got into the caches
 * @param backend kernels that ran
 * @param threads threads that ran them
 * @param complete whether all samples were run for all methods
 * @param seconds time taken
 * @param results one for each method, the 16-bit reference first
 */
public record Outcome(
    String model,
    String about,
    PromptMode prompt,
    String backend,
    int threads,
    boolean complete,
    double seconds,
    List<MethodResult> results) {

  /** The result of the method with this name, if it took part. */
  public Optional<MethodResult> find(String name) {
    return results.stream().filter(result -> result.method().name().equals(name)).findFirst();
  }

  /** Names of all tasks. */
  public Set<String> tasks() {
    Set<String> names = new LinkedHashSet<>();
    results.forEach(result -> names.addAll(result.taskNames()));
    return names;
  }

  /** Names of all texts. */
  public Set<String> texts() {
    Set<String> names = new LinkedHashSet<>();
    results.forEach(result -> names.addAll(result.textNames()));
    return names;
  }
}
