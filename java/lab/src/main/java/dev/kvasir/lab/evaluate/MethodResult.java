package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvStats;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.ToDoubleFunction;
import org.jspecify.annotations.Nullable;

/** What is known of one method so far. */
public final class MethodResult {

  /** Bytes that a sequence of so many tokens took. */
  public record Memory(int tokens, double bytes) {}

  /** How much of a layer's keys and values used patterns, and the like. */
  public record TableUse(double keys, double values) {}

  /** How many key channels of a layer have codes of which width. */
  public record Tiers(Map<Integer, Long> channels) {
    /** The share of a width among them. */
    public double share(int bits) {
      long all = channels.values().stream().mapToLong(Long::longValue).sum();
      return all == 0 ? 0 : (double) channels.getOrDefault(bits, 0L) / all;
    }
  }

  private final MethodEntry method;
  // Grow while a program that is stopped writes what there is.
  private final List<TextScore> texts = new CopyOnWriteArrayList<>();
  private final List<TaskScore> tasks = new CopyOnWriteArrayList<>();
  private final List<Memory> memory = new CopyOnWriteArrayList<>();
  private List<TableUse> tableUse = List.of();
  private List<Tiers> tiers = List.of();
  private double[][] headErrors = {};
  private double bits = Double.NaN;
  private double pageBits = Double.NaN;
  private double codebookBits = Double.NaN;
  private double[] bitsAtLengths = new double[0];
  private double cacheBytes = Double.NaN;
  private int cacheTokens;
  private Figure microsPerToken = Figure.NONE;
  private Figure attentionMicros = Figure.NONE;
  private @Nullable String failure;

  MethodResult(MethodEntry method) {
    this.method = method;
  }

  /** The method. */
  public MethodEntry method() {
    return method;
  }

  /** Scores of texts. */
  public List<TextScore> texts() {
    return texts;
  }

  /** Scores of tasks. */
  public List<TaskScore> tasks() {
    return tasks;
  }

  /** Why the method could not go on, if so. */
  public @Nullable String failure() {
    return failure;
  }

  /** Names of the tasks that have scores. */
  public Set<String> taskNames() {
    Set<String> names = new LinkedHashSet<>();
    tasks.forEach(score -> names.add(score.set()));
    return names;
  }

  /** Names of the texts that have scores. */
  public Set<String> textNames() {
    Set<String> names = new LinkedHashSet<>();
    texts.forEach(score -> names.add(score.set()));
    return names;
  }

  /** Bits per byte over all texts. */
  public Figure bitsPerByte() {
    return ratio(texts, TextScore::bits, TextScore::bytes);
  }

  /** Perplexity a token over all texts: two to the power of the bits that a token needs. */
  public double perplexity() {
    return Math.pow(2, ratio(texts, TextScore::bits, TextScore::tokens).value());
  }

  /** Mean divergence of one text. */
  public Figure divergence(String set) {
    return ratio(
        texts.stream().filter(score -> score.set().equals(set)).toList(), TextScore::divergence, TextScore::compared);
  }

  /** Perplexity a token of one text. */
  public double perplexity(String set) {
    return Math.pow(
        2,
        ratio(texts.stream().filter(score -> score.set().equals(set)).toList(), TextScore::bits, TextScore::tokens)
            .value());
  }

  /** Bits per byte of one text. */
  public Figure bitsPerByte(String set) {
    return ratio(texts.stream().filter(score -> score.set().equals(set)).toList(), TextScore::bits, TextScore::bytes);
  }

  /** Bits per byte beyond token 512. */
  public Figure bitsPerByteFar() {
    return ratio(texts, TextScore::farBits, TextScore::farBytes);
  }

  /** Mean Kullback-Leibler divergence from the 16-bit cache, in nats per token. */
  public Figure divergence() {
    return ratio(texts, TextScore::divergence, TextScore::compared);
  }

  /** Share of predictions with the likeliest token of the 16-bit cache. */
  public Figure agreement() {
    return ratio(texts, TextScore::agreements, TextScore::compared);
  }

  /** Share of a task's instances answered exactly. */
  public Figure exact(String task) {
    return mean(task, score -> score.exact() ? 1 : 0);
  }

  /** Share of the answers' tokens that are predicted given the right beginning. */
  public Figure tokenAccuracy(String task) {
    return ratio(
        tasks.stream().filter(score -> score.set().equals(task)).toList(), TaskScore::right, TaskScore::tokens);
  }

  /** Mean share of an answer before its first wrong token. */
  public Figure correctPrefix(String task) {
    return mean(task, score -> (double) score.prefix() / score.tokens());
  }

  /** Bits per element over everything that the cache held: codes, scales, tables, 16-bit windows. */
  public double bits() {
    return bits;
  }

  /** Bits per element of sealed pages. */
  public double pageBits() {
    return pageBits;
  }

  /** {@link #bits} of sequences of {@link Lengths#TOKENS} tokens; NaN where that is not known. */
  public double bitsAtLength(int index) {
    return index < bitsAtLengths.length ? bitsAtLengths[index] : Double.NaN;
  }

  /** What codebooks add to {@link #bits} where a cache holds one sequence; sequences share them. 0 without any. */
  public double codebookBits() {
    return codebookBits;
  }

  /** Most bytes that one sequence took. */
  public double cacheBytes() {
    return cacheBytes;
  }

  /** Tokens of the sequences that {@link #bits} and {@link #cacheBytes} speak of. */
  public int cacheTokens() {
    return cacheTokens;
  }

  /** Time of a decoding step of one sequence of {@link #cacheTokens} tokens. */
  public Figure microsPerToken() {
    return microsPerToken;
  }

  /** The part of {@link #microsPerToken} in appends and attends. */
  public Figure attentionMicros() {
    return attentionMicros;
  }

  /** Memory of a sequence as it grew. */
  public List<Memory> memory() {
    return memory;
  }

  /** Use of patterns by layer. */
  public List<TableUse> tableUse() {
    return tableUse;
  }

  /** Widths of key channels by layer, where they differ within a page; else empty. */
  public List<Tiers> tiers() {
    return tiers;
  }

  /** Relative errors of attention outputs, {@code [layer][query head]}, on the keys and values of the 16-bit cache. */
  public double[][] headErrors() {
    return headErrors;
  }

  void add(TextScore score) {
    texts.add(score);
  }

  void add(TaskScore score) {
    tasks.add(score);
  }

  void add(int tokens, double bytes) {
    memory.add(new Memory(tokens, bytes));
  }

  void holds(KvCache cache, int sequences, int tokens) {
    KvStats stats = cache.stats();
    bits = stats.total().bitsPerElement();
    pageBits = stats.total().pageBitsPerElement();
    cacheBytes = (double) stats.peakBytes() / sequences;
    cacheTokens = tokens;
    long elements = 0;
    for (int layer = 0; layer < cache.geometry().layers(); layer++) {
      elements += 2L * cache.geometry().rowSize(layer) * tokens;
    }
    codebookBits = 8.0 * cache.method().codebookBytes() / elements;
    if (stats.layers().stream().anyMatch(layer -> layer.keyChannels().size() > 1)) {
      tiers = stats.layers().stream().map(layer -> new Tiers(layer.keyChannels())).toList();
    }
    tableUse = stats.layers().stream().map(l -> new TableUse(l.keyTableUse(), l.valueTableUse())).toList();
  }

  void takes(Figure micros, Figure attention) {
    microsPerToken = micros;
    attentionMicros = attention;
  }

  void bitsAtLengths(double[] found) {
    bitsAtLengths = found;
  }

  void headErrors(double[][] errors) {
    headErrors = errors;
  }

  void failed(String why) {
    failure = why;
  }

  private Figure mean(String task, ToDoubleFunction<TaskScore> part) {
    return Figure.mean(
        tasks.stream().filter(s -> s.set().equals(task)).mapToDouble(part).boxed().toList());
  }

  private static <T> Figure ratio(List<T> scores, ToDoubleFunction<T> above, ToDoubleFunction<T> below) {
    return Figure.ratio(scores.stream().mapToDouble(above).toArray(), scores.stream().mapToDouble(below).toArray());
  }
}
