package dev.kvasir;

import dev.kvasir.internal.Checks;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Sees to it that a method gets what it needs: refuses what is missing for sure, and warns, once for each cache and need, of
 * what nobody can see but the caller.
 */
final class NeedsWatch {

  private static final System.Logger LOGGER = System.getLogger("dev.kvasir");

  private final KvMethod method;

  /** Whether the method goes by queries and none have come yet. */
  private volatile boolean waitsForQueries;

  private NeedsWatch(KvMethod method) {
    this.method = method;
    this.waitsForQueries = method.needs().contains(Need.OBSERVED_QUERIES);
  }

  /**
   * Looks at what is known when a cache is built.
   *
   * @param keysBeforeRope what the caller said of its keys; null for nothing
   * @throws IllegalArgumentException if the caller's keys are not those that the method wants
   */
  static NeedsWatch of(KvGeometry geometry, KvMethod method, @Nullable Boolean keysBeforeRope) {
    boolean wanted = method.keysBeforeRope();
    Checks.require(
        keysBeforeRope == null || keysBeforeRope == wanted,
        "keys come " + side(keysBeforeRope != null && keysBeforeRope) + " RoPE, and method " + method.name()
            + " stores them " + side(wanted) + " it: append them as they are " + side(wanted)
            + " RoPE, or choose a method whose keysBeforeRope() is " + !wanted);
    NeedsWatch watch = new NeedsWatch(method);
    Set<Need> needs = method.needs();
    if (needs.contains(Need.KEYS_BEFORE_ROPE) && keysBeforeRope == null) {
      watch.warn("stores keys as they are before RoPE and turns them itself. Append them so, and say so with"
          + " KvCache.Builder.keysBeforeRope(true), which ends this warning");
    }
    if (needs.contains(Need.KEY_SCALING) && unscaledLayer(geometry, method) >= 0) {
      watch.warn("quantises keys per token, and those of layer " + unscaledLayer(geometry, method)
          + " are not scaled: where channels differ in size, little is left of the small ones. Calibrate a KeyScaling and"
          + " use its applyTo, or quantise keys per channel");
    }
    return watch;
  }

  /** Queries were seen. */
  void queries() {
    if (waitsForQueries) {
      waitsForQueries = false;
    }
  }

  /** Tokens are about to be appended to a layer; the first page is sealed by those after sinks and window. */
  void append(KvSequence sequence, int layer, int tokens) {
    if (!waitsForQueries) {
      return;
    }
    long open = (long) method.sinks() + method.window() + KvCache.PAGE_TOKENS;
    if (sequence.length(layer) + (long) tokens >= open) {
      waitsForQueries = false;
      warn("chooses what to keep of keys by the queries that look at them, and seals a page before it has seen any: all"
          + " channels count alike. Let attend compute the prompt's attention, or show its queries with observe before the"
          + " prompt is appended");
    }
  }

  private void warn(String text) {
    LOGGER.log(System.Logger.Level.WARNING, "Method " + method.name() + " " + text + ".");
  }

  private static int unscaledLayer(KvGeometry geometry, KvMethod method) {
    for (int layer = 0; layer < geometry.layers(); layer++) {
      if (method.keyScaling(layer).length == 0) {
        return layer;
      }
    }
    return -1;
  }

  private static String side(boolean before) {
    return before ? "before" : "after";
  }
}
