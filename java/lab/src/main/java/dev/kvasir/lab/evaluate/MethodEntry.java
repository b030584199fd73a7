package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import java.util.function.Predicate;

/**
 * A method that takes part in evaluations.
 *
 * @param name what commands and files call it
 * @param family methods that belong together in charts
 * @param about one line for readers
 * @param factory makes its caches
 * @param applies whether there is what it needs to learn of the model
 */
public record MethodEntry(
    String name, String family, String about, CacheFactory factory, Predicate<Calibrations> applies) {

  /** A method that needs nothing. */
  public MethodEntry(String name, String family, String about, CacheFactory factory) {
    this(name, family, about, factory, calibrations -> true);
  }

  /**
   * What a cache is wanted for.
   *
   * @param geometry the model's shape
   * @param sequences how many there will be, with pages of their own
   * @param forks how many more that share the pages of those and have windows of their own
   * @param tokens how long each may become, for methods whose budget depends on it
   * @param calibrations what can be learned of the model, for methods that need it
   */
  public record Request(
      KvGeometry geometry, int sequences, int forks, int tokens, Calibrations calibrations) {}

  /** Makes caches for an evaluation. */
  @FunctionalInterface
  public interface CacheFactory {
    /** A cache for some sequences at once. */
    KvCache create(Request request);
  }

  /** A method without a budget. */
  static MethodEntry of(String name, String family, String about, KvMethod method) {
    return new MethodEntry(name, family, about, request -> cache(request, method));
  }

  /** A cache without a budget; the model appends keys on the side of RoPE that the method wants them from. */
  static KvCache cache(Request request, KvMethod method) {
    return KvCache.builder(request.geometry()).method(method).keysBeforeRope(method.keysBeforeRope()).build();
  }
}
