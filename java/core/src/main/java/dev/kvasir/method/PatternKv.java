package dev.kvasir.method;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvMethod;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Records;
import java.util.Objects;

/**
 * PatternKV: each key and value vector is matched with one of the sequence's patterns, and only what is left is
 * quantised.
 *
 * <pre>{@code
 * KvMethod method = PatternKv.bits(2).patterns(16);
 * }</pre>
 *
 * <p>Patterns are mined from the prompt by k-means when the first page is sealed, per layer and kv head, for keys and
 * values apart. Pages sealed later add the centre of their own tokens, so that long generations stay covered. A vector
 * that a pattern does not flatten enough is stored without one: values decide by a test per token, keys by page. The
 * prompt is what is there when the first page is sealed, so append it in one piece.
 *
 * <p>What the patterns cost and how much they are used is in {@link dev.kvasir.KvStats.Layer}.
 *
 * @param keyBits bits of a key element: 1, 2, 3, 4 or 8
 * @param valueBits bits of a value element: the same
 * @param patterns patterns mined from the prompt, 2..64
 * @param metric how vectors are matched with patterns
 * @param keyPatterns whether keys use patterns at all; else they are quantised as by {@link Uniform}
 * @param valuePatterns whether values do
 * @param newPatterns whether pages sealed after the prompt add patterns
 * @param keyTest whether a page's keys use patterns only where these lower its squared ranges
 * @param alpha level of the test that a value's pattern must pass, below 0.5; 0 for no test
 * @param rawMatches whether a vector that is nearest to no pattern has none; if not it has the nearest of the patterns,
 *     as in the paper, unless a test refuses that
 * @param group elements that share parameters: 32, 64 or 128; 0 for the codec's default
 * @param grid where codes of residuals stand in the range of their group
 * @param window see {@link KvMethod#window}
 * @param sinks see {@link KvMethod#sinks}
 */
public record PatternKv(
    int keyBits,
    int valueBits,
    int patterns,
    Metric metric,
    boolean keyPatterns,
    boolean valuePatterns,
    boolean newPatterns,
    boolean keyTest,
    double alpha,
    boolean rawMatches,
    int group,
    Grid grid,
    int window,
    int sinks)
    implements KvMethod {

  /** How a vector is matched with patterns. */
  public enum Metric {
    /** The range of the residual over its channels, as in the paper: what a per-token quantiser has to cover. */
    MIN_MAX(0),
    /** The Euclidean distance. */
    EUCLIDEAN(1);

    private final int code;

    Metric(int code) {
      this.code = code;
    }

    /**
     * The number that native code knows it by, for good.
     *
     * @return the code
     */
    public int code() {
      return code;
    }
  }

  /**
   * Checks the numbers. Whether a group fits the head dim is checked when a cache is built.
   *
   * @param keyBits bits of a key element
   * @param valueBits bits of a value element
   * @param patterns patterns mined from the prompt
   * @param metric how vectors are matched with patterns
   * @param keyPatterns whether keys use patterns
   * @param valuePatterns whether values use patterns
   * @param newPatterns whether pages sealed after the prompt add patterns
   * @param keyTest whether a page's keys must be better off with patterns
   * @param alpha level of the test that a value's pattern must pass
   * @param rawMatches whether a vector may have no pattern because that is nearest
   * @param group elements that share parameters
   * @param grid where codes of residuals stand in the range of their group
   * @param window see {@link KvMethod#window}
   * @param sinks see {@link KvMethod#sinks}
   * @throws IllegalArgumentException for a number out of its range
   */
  public PatternKv {
    requireWidth("keyBits", keyBits);
    requireWidth("valueBits", valueBits);
    Checks.require(patterns >= 2 && patterns <= 64, "patterns", patterns, "2..64");
    Checks.require(alpha >= 0 && alpha < 0.5, "alpha", alpha, "0 or more and below 0.5");
    Checks.requireNotNegative("group", group);
    Checks.requireNotNegative("window", window);
    Checks.requireNotNegative("sinks", sinks);
    Objects.requireNonNull(metric, "metric");
    Objects.requireNonNull(grid, "grid");
  }

  /**
   * Keys and values at the same width, with the paper's settings: 32 patterns, min-max matching, groups of 128, the
   * tests and new patterns on; and with {@link Grid#BY_WIDTH} and 4 sinks, where the paper has {@link Grid#ENDS} and
   * none.
   *
   * @param bits 1, 2, 3, 4 or 8
   * @return the method
   */
  public static PatternKv bits(int bits) {
    return new PatternKv(bits, bits, 32, Metric.MIN_MAX, true, true, true, true, 0.05, true, 0, Grid.BY_WIDTH, 0, Sinks.DEFAULT);
  }

  /**
   * This method with another width for keys.
   *
   * @param bits 1, 2, 3, 4 or 8
   * @return a new method
   */
  public PatternKv keyBits(int bits) {
    return Records.with(this, "keyBits", bits);
  }

  /**
   * This method with another width for values.
   *
   * @param bits 1, 2, 3, 4 or 8
   * @return a new method
   */
  public PatternKv valueBits(int bits) {
    return Records.with(this, "valueBits", bits);
  }

  /**
   * This method with another number of mined patterns.
   *
   * @param count 2..64
   * @return a new method
   */
  public PatternKv patterns(int count) {
    return Records.with(this, "patterns", count);
  }

  /**
   * This method with another way to match vectors with patterns.
   *
   * @param metric the metric
   * @return a new method
   */
  public PatternKv metric(Metric metric) {
    return Records.with(this, "metric", metric);
  }

  /**
   * This method with keys with or without patterns.
   *
   * @param use whether keys use them
   * @return a new method
   */
  public PatternKv keyPatterns(boolean use) {
    return Records.with(this, "keyPatterns", use);
  }

  /**
   * This method with values with or without patterns.
   *
   * @param use whether values use them
   * @return a new method
   */
  public PatternKv valuePatterns(boolean use) {
    return Records.with(this, "valuePatterns", use);
  }

  /**
   * This method with or without new patterns after the prompt.
   *
   * @param add whether later pages add patterns
   * @return a new method
   */
  public PatternKv newPatterns(boolean add) {
    return Records.with(this, "newPatterns", add);
  }

  /**
   * This method with or without the test of a page's keys.
   *
   * @param test whether patterns must lower the squared ranges
   * @return a new method
   */
  public PatternKv keyTest(boolean test) {
    return Records.with(this, "keyTest", test);
  }

  /**
   * This method with another test of values.
   *
   * @param alpha the level, below 0.5; 0 for no test
   * @return a new method
   */
  public PatternKv alpha(double alpha) {
    return Records.with(this, "alpha", alpha);
  }

  /**
   * This method with or without vectors that have no pattern because that is nearest.
   *
   * @param allow whether there may be such; if not, and without {@link #keyTest} and {@link #alpha}, all have one
   * @return a new method
   */
  public PatternKv rawMatches(boolean allow) {
    return Records.with(this, "rawMatches", allow);
  }

  /**
   * This method with another group size.
   *
   * @param elements 32, 64 or 128; 0 for the codec's default
   * @return a new method
   */
  public PatternKv group(int elements) {
    return Records.with(this, "group", elements);
  }

  /**
   * This method with another grid.
   *
   * @param grid the grid, of keys and values
   * @return a new method
   */
  public PatternKv grid(Grid grid) {
    return Records.with(this, "grid", grid);
  }

  /**
   * This method with another window.
   *
   * @param tokens see {@link KvMethod#window}
   * @return a new method
   */
  public PatternKv window(int tokens) {
    return Records.with(this, "window", tokens);
  }

  /**
   * This method with another number of sinks.
   *
   * @param tokens see {@link KvMethod#sinks}
   * @return a new method
   */
  public PatternKv sinks(int tokens) {
    return Records.with(this, "sinks", tokens);
  }

  @Override
  public String name() {
    return "pattern-k" + keyBits + "v" + valueBits;
  }

  @Override
  public CodecChoice keys(int layer) {
    return keyPatterns ? choice(keyBits).with("accept", keyTest ? 1 : 0) : raw(keyBits);
  }

  @Override
  public CodecChoice values(int layer) {
    return valuePatterns ? choice(valueBits).with("alpha", alpha) : raw(valueBits);
  }

  private CodecChoice choice(int bits) {
    CodecChoice choice =
        grouped(CodecChoice.of("pattern", bits))
            .with("patterns", patterns)
            .with("metric", metric.code())
            .with("new_patterns", newPatterns ? 1 : 0);
    return rawMatches ? choice : choice.with("raw", 0);
  }

  private CodecChoice raw(int bits) {
    return grouped(CodecChoice.of("uniform", bits));
  }

  private CodecChoice grouped(CodecChoice choice) {
    CodecChoice onGrid = grid.applyTo(choice);
    return group == 0 ? onGrid : onGrid.with("group", group);
  }

  private static void requireWidth(String name, int bits) {
    Checks.require(bits >= 1 && bits <= 4 || bits == 8, name, bits, "1, 2, 3, 4 or 8");
  }
}
