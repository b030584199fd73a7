package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;

/**
 * A method that takes part in evaluations.
 *
 * @param name what commands and files call it
 * @param family methods that belong together in charts
 * @param about one line for readers
 * @param factory makes its caches
 */
public record MethodEntry(String name, String family, String about, CacheFactory factory) {

  /** Makes caches for an evaluation. */
  @FunctionalInterface
  public interface CacheFactory {
    /**
     * A cache for some sequences at once.
     *
     * @param geometry the model's shape
     * @param sequences how many there will be
     * @param tokens how long each may become, for methods whose budget depends on it
     */
    KvCache create(KvGeometry geometry, int sequences, int tokens);
  }

  /** A method without a budget. */
  static MethodEntry of(String name, String family, String about, KvMethod method) {
    return new MethodEntry(
        name, family, about, (geometry, sequences, tokens) -> KvCache.builder(geometry).method(method).build());
  }
}
