package dev.kvasir.runner;

import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * What a session is asked to write.
 *
 * @param maxTokens how many tokens at most, 1 or more
 * @param sampling how they are chosen
 * @param stops tokens that end it
 * @param listener hears of every token, or null
 */
public record Generation(int maxTokens, Sampling sampling, Set<Integer> stops, @Nullable Listener listener) {

  /** Hears of tokens as they are written. Called by the engine's thread, which waits: be quick. */
  @FunctionalInterface
  public interface Listener {
    /**
     * A token was written.
     *
     * @param token which
     * @param text what it adds to the text; empty while a character is incomplete, and for special tokens
     */
    void written(int token, String text);
  }

  /** Why no more was written. */
  public enum End {
    /** A token that ends it. */
    STOP,
    /** As many tokens as were asked for, or as the model was made for. */
    LENGTH,
    /** Somebody cancelled it. */
    CANCELLED
  }

  /**
   * What was written.
   *
   * @param tokens all tokens, a stop token included
   * @param text what they say
   * @param end why no more
   * @param reusedTokens how many tokens before it were known to the engine's prefix cache and not read again
   */
  public record Result(List<Integer> tokens, String text, End end, int reusedTokens) {}

  /** Checks and copies. */
  public Generation {
    stops = Set.copyOf(stops);
    if (maxTokens < 1) {
      throw new IllegalArgumentException("maxTokens is " + maxTokens + ", not 1 or more");
    }
  }

  /** The likeliest tokens until the model ends its text. */
  public static Generation greedy(Model model, int maxTokens) {
    return new Generation(maxTokens, Sampling.GREEDY, new LinkedHashSet<>(model.config().ends()), null);
  }

  /** The same with other choices. */
  public Generation sampling(Sampling choice) {
    return new Generation(maxTokens, choice, stops, listener);
  }

  /** The same with more tokens that end it. */
  public Generation alsoStopAt(Integer... tokens) {
    Set<Integer> all = new LinkedHashSet<>(stops);
    all.addAll(Arrays.asList(tokens));
    return new Generation(maxTokens, sampling, all, listener);
  }

  /** The same with a listener. */
  public Generation listener(Listener hears) {
    return new Generation(maxTokens, sampling, stops, hears);
  }
}
