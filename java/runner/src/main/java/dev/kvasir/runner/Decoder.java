package dev.kvasir.runner;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Runs a model: takes some tokens of each of several sequences, appends their keys and values to the cache, attends
 * there, and hands out logits.
 *
 * <p>All tokens of a call go through each matrix together, so a batch of sequences costs little more than one. What a
 * sequence gets does not depend on what else is in the call, not by a bit. Not for use by several threads.
 */
public final class Decoder {

  /**
   * Tokens for one sequence, which follow those that it has.
   *
   * @param sequence where they go
   * @param tokens an array that holds them
   * @param from the first of them
   * @param count their number, 1 or more
   * @param wanted how many of the last ones need logits, 0..count
   */
  public record Feed(KvSequence sequence, int[] tokens, int from, int count, int wanted) {

    /** All of these tokens, with the logits of the last. */
    public static Feed of(KvSequence sequence, int... tokens) {
      return new Feed(sequence, tokens, 0, tokens.length, 1);
    }
  }

  /** Takes the logits of one token. */
  @FunctionalInterface
  public interface LogitSink {
    /**
     * One token's logits.
     *
     * @param feed which of the feeds
     * @param token index in the feed's array
     * @param logits one for each token of the vocabulary; reused after the call
     */
    void accept(int feed, int token, float[] logits);
  }

  /** Watches attention. */
  @FunctionalInterface
  public interface Probe {
    /** Queries and outputs of one layer, {@code [rows][queryHeads][headDim]}, in the order of the feeds. */
    void attended(int layer, FloatBuffer queries, FloatBuffer outputs, int rows);
  }

  /** Most logits that are held at once. */
  private static final int LOGIT_BLOCK = 1 << 22;

  /** A layer's weights, where they are computed with. */
  private record Layer(
      Compute.Vector attentionNorm,
      Compute.Matrix queries,
      Compute.Matrix keys,
      Compute.Matrix values,
      Compute.@Nullable Vector queryNorm,
      Compute.@Nullable Vector keyNorm,
      Compute.Matrix output,
      Compute.Vector feedNorm,
      Compute.Matrix gate,
      Compute.Matrix up,
      Compute.Matrix down) {}

  private final Model model;
  private final ModelConfig config;
  private final Compute compute;

  private final Compute.Matrix embedding;
  private final List<Layer> layers = new ArrayList<>();
  private final Compute.Vector finalNorm;
  private final Compute.Matrix head;

  private final Compute.Rows state;
  private final Compute.Rows normed;
  private final Compute.Rows queries;
  private final Compute.Rows keys;
  private final Compute.Rows values;
  private final Compute.Rows attended;
  private final Compute.Rows change;
  private final Compute.Rows gate;
  private final Compute.Rows up;
  private final Compute.Rows logits;

  private @Nullable Probe probe;
  private long attentionNanos;

  /** A runner of these weights. */
  public Decoder(Model model) {
    this(model, new HostCompute(model.config()));
  }

  Decoder(Model model, Compute compute) {
    this.model = model;
    this.config = model.config();
    this.compute = compute;
    this.embedding = compute.matrix(model.embedding(), null);
    for (Model.Layer layer : model.layers()) {
      layers.add(
          new Layer(
              compute.vector(layer.attentionNorm()),
              matrix(layer.queries()),
              matrix(layer.keys()),
              matrix(layer.values()),
              layer.queryNorm() == null ? null : compute.vector(layer.queryNorm()),
              layer.keyNorm() == null ? null : compute.vector(layer.keyNorm()),
              matrix(layer.output()),
              compute.vector(layer.feedNorm()),
              matrix(layer.gate()),
              matrix(layer.up()),
              matrix(layer.down())));
    }
    this.finalNorm = compute.vector(model.finalNorm());
    this.head = compute.matrix(model.head(), null);
    int querySize = config.queryHeads() * config.headDim();
    int rowSize = config.kvHeads() * config.headDim();
    state = compute.rows(config.hidden());
    normed = compute.rows(config.hidden());
    queries = compute.rows(querySize);
    keys = compute.rows(rowSize);
    values = compute.rows(rowSize);
    attended = compute.rows(querySize);
    change = compute.rows(config.hidden());
    gate = compute.rows(config.intermediate());
    up = compute.rows(config.intermediate());
    // Few tokens need logits, and a row of them is long: they get room of their own.
    logits = compute.rows(config.vocabulary(), Math.max(1, LOGIT_BLOCK / config.vocabulary()));
  }

  private Compute.Matrix matrix(Model.Projection projection) {
    return compute.matrix(projection.weights(), projection.bias());
  }

  /** The weights. */
  public Model model() {
    return model;
  }

  /** Calls a probe after every attention from now on; null for none. */
  public void probe(@Nullable Probe watcher) {
    this.probe = watcher;
  }

  /** What a layer multiplies the outputs of attention with, {@code [hidden][queryHeads * headDim]}: for calibration. */
  public float[] outputProjection(int layer) {
    model.requireWeights();
    int[] rows = IntStream.range(0, config.hidden()).toArray();
    compute.reserve(rows.length);
    compute.embed(rows, rows.length, layers.get(layer).output(), queries);
    float[] out = new float[Math.multiplyExact(rows.length, config.queryHeads() * config.headDim())];
    compute.read(queries, rows.length).get(0, out);
    return out;
  }

  /** Time spent in appends and attends so far. */
  public long attentionNanos() {
    return attentionNanos;
  }

  /**
   * Runs tokens of sequences of one cache. Where that fails, every sequence is cut back to the length that it had.
   *
   * @throws IllegalArgumentException if a token is not in the vocabulary, a range is not in its array, or sequences are
   *     of different caches or listed twice
   * @throws dev.kvasir.error.BudgetExceededException if the tokens do not fit the cache's budget
   * @throws java.io.UncheckedIOException if the file that the weights are mapped from was cut short: see {@link Model}
   */
  public void decode(List<Feed> feeds, LogitSink sink) {
    int[] tokens = check(feeds);
    model.requireWeights();
    int[] positions = new int[tokens.length];
    int[] lengths = new int[feeds.size()];
    int row = 0;
    for (int f = 0; f < lengths.length; f++) {
      lengths[f] = (int) feeds.get(f).sequence().length(0);
      for (int i = 0; i < feeds.get(f).count(); i++) {
        positions[row++] = lengths[f] + i;
      }
    }
    try {
      run(feeds, tokens, positions);
      deliver(feeds, sink);
    } catch (RuntimeException | Error e) {
      for (int f = 0; f < lengths.length; f++) {
        cutBack(feeds.get(f), lengths[f], e);
      }
      throw e;
    }
  }

  private static void cutBack(Feed feed, int length, Throwable cause) {
    try {
      feed.sequence().truncate(length);
    } catch (RuntimeException e) {
      cause.addSuppressed(e);
    }
  }

  private void run(List<Feed> feeds, int[] tokens, int[] positions) {
    int rows = tokens.length;
    boolean turnKeys = !feeds.get(0).sequence().cache().method().keysBeforeRope();
    compute.reserve(rows);
    compute.positions(positions, rows);
    compute.embed(tokens, rows, embedding, state);
    for (int number = 0; number < layers.size(); number++) {
      Layer layer = layers.get(number);
      compute.norm(state, rows, 1, layer.attentionNorm(), normed);
      compute.project(normed, rows, layer.queries(), queries);
      compute.project(normed, rows, layer.keys(), keys);
      compute.project(normed, rows, layer.values(), values);
      if (layer.queryNorm() != null) {
        compute.norm(queries, rows, config.queryHeads(), layer.queryNorm(), queries);
      }
      if (layer.keyNorm() != null) {
        compute.norm(keys, rows, config.kvHeads(), layer.keyNorm(), keys);
      }
      compute.turn(queries, rows, config.queryHeads());
      if (turnKeys) {
        compute.turn(keys, rows, config.kvHeads());
      }
      attend(number, feeds, rows);
      compute.project(attended, rows, layer.output(), change);
      compute.add(change, rows, state);
      compute.norm(state, rows, 1, layer.feedNorm(), normed);
      compute.project(normed, rows, layer.gate(), gate);
      compute.project(normed, rows, layer.up(), up);
      compute.swiglu(gate, up, rows);
      compute.project(gate, rows, layer.down(), change);
      compute.add(change, rows, state);
    }
  }

  private void attend(int layer, List<Feed> feeds, int rows) {
    long start = System.nanoTime();
    compute.attend(layer, feeds, queries, keys, values, attended);
    attentionNanos += System.nanoTime() - start;
    if (probe != null) {
      probe.attended(layer, compute.read(queries, rows), compute.read(attended, rows), rows);
    }
  }

  /** Runs tokens of one sequence and returns the logits of the last. */
  public float[] decode(KvSequence sequence, int... tokens) {
    float[] result = new float[config.vocabulary()];
    decode(
        List.of(Feed.of(sequence, tokens)),
        (feed, token, found) -> System.arraycopy(found, 0, result, 0, result.length));
    return result;
  }

  /** The token of each row, after checking all that could go wrong later. */
  private int[] check(List<Feed> feeds) {
    if (feeds.isEmpty()) {
      throw new IllegalArgumentException("nothing to decode");
    }
    KvCache cache = feeds.get(0).sequence().cache();
    Set<KvSequence> seen = new HashSet<>();
    int rows = 0;
    for (Feed feed : feeds) {
      if (feed.count() < 1 || feed.from() < 0 || feed.from() > feed.tokens().length - feed.count()) {
        throw new IllegalArgumentException(
            feed.count() + " tokens from " + feed.from() + " on, of " + feed.tokens().length);
      }
      if (feed.wanted() < 0 || feed.wanted() > feed.count()) {
        throw new IllegalArgumentException("logits of " + feed.wanted() + " tokens out of " + feed.count());
      }
      if (feed.sequence().cache() != cache || !seen.add(feed.sequence())) {
        throw new IllegalArgumentException("sequences of two caches, or one sequence twice");
      }
      rows = Math.addExact(rows, feed.count());
    }
    int[] tokens = new int[rows];
    int row = 0;
    for (Feed feed : feeds) {
      for (int i = 0; i < feed.count(); i++) {
        int token = feed.tokens()[feed.from() + i];
        if (token < 0 || token >= config.vocabulary()) {
          throw new IllegalArgumentException("token " + token + " of a vocabulary of " + config.vocabulary());
        }
        tokens[row++] = token;
      }
    }
    return tokens;
  }

  private record Wanted(int row, int feed, int token) {}

  private void deliver(List<Feed> feeds, LogitSink sink) {
    List<Wanted> wanted = new ArrayList<>();
    int row = 0;
    for (int f = 0; f < feeds.size(); f++) {
      Feed feed = feeds.get(f);
      for (int i = 0; i < feed.count(); i++, row++) {
        if (i >= feed.count() - feed.wanted()) {
          wanted.add(new Wanted(row, f, feed.from() + i));
        }
      }
    }
    int vocabulary = config.vocabulary();
    int block = Math.max(1, LOGIT_BLOCK / vocabulary);
    float[] one = new float[vocabulary];
    for (int begin = 0; begin < wanted.size(); begin += block) {
      int count = Math.min(block, wanted.size() - begin);
      List<Wanted> part = wanted.subList(begin, begin + count);
      compute.gather(state, part.stream().mapToInt(Wanted::row).toArray(), count, change);
      compute.norm(change, count, 1, finalNorm, normed);
      compute.project(normed, count, head, logits);
      FloatBuffer found = compute.read(logits, count);
      for (int i = 0; i < count; i++) {
        found.get(i * vocabulary, one);
        sink.accept(part.get(i).feed(), part.get(i).token(), one);
      }
    }
  }
}
