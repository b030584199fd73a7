package dev.kvasir.lab.model;

import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Need;
import dev.kvasir.internal.model.Matrix;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntConsumer;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Runs a model: takes some tokens of each of several sequences, appends their keys and values to the cache, attends
 * there, and hands out logits.
 *
 * <p>All tokens of a call go through each matrix together, so a batch of sequences costs little more than one. What a
 * sequence gets does not depend on what else is in the call. Not for use by several threads.
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

  /** Rows from which on several threads share the work between the products. */
  private static final int PARALLEL_ROWS = 64;

  /** Most logits that are held at once. */
  private static final int LOGIT_BLOCK = 1 << 24;

  private final Model model;
  private final ModelConfig config;
  private final int querySize;
  private final int rowSize;

  private @Nullable Probe probe;
  private long attentionNanos;

  // Direct, for native code; each grows to the most rows seen.
  private FloatBuffer input = direct(0);
  private FloatBuffer output = direct(0);
  private FloatBuffer qkv = direct(0);
  private FloatBuffer queries = direct(0);
  private FloatBuffer keys = direct(0);
  private FloatBuffer values = direct(0);
  private FloatBuffer gates = direct(0);
  private FloatBuffer activated = direct(0);
  private FloatBuffer logits = direct(0);

  /** A runner of these weights. */
  public Decoder(Model model) {
    this.model = model;
    this.config = model.config();
    this.querySize = config.queryHeads() * config.headDim();
    this.rowSize = config.kvHeads() * config.headDim();
  }

  /** The weights. */
  public Model model() {
    return model;
  }

  /** Calls a probe after every attention from now on; null for none. */
  public void probe(@Nullable Probe watcher) {
    this.probe = watcher;
  }

  /** Time spent in appends and attends so far. */
  public long attentionNanos() {
    return attentionNanos;
  }

  /**
   * Runs tokens of sequences of one cache.
   *
   * @throws IllegalArgumentException if a token is not in the vocabulary, a range is not in its array, or sequences are
   *     of different caches or listed twice
   */
  public void decode(List<Feed> feeds, LogitSink sink) {
    int[] positions = check(feeds);
    int rows = positions.length;
    reserve(rows);
    float[] state = embed(feeds, rows);
    for (int layer = 0; layer < config.layers(); layer++) {
      Model.Layer weights = model.layers().get(layer);
      normalise(state, weights.attentionNorm(), rows, r -> r, input);
      weights.qkv().apply(input, rows, qkv);
      attend(layer, feeds, positions);
      weights.output().apply(input, rows, output);
      add(output, state, rows);
      normalise(state, weights.feedNorm(), rows, r -> r, input);
      weights.gateUp().apply(input, rows, gates);
      Matrix.siluProduct(gates, rows, config.intermediate(), activated);
      weights.down().apply(activated, rows, output);
      add(output, state, rows);
    }
    deliver(feeds, state, sink);
  }

  /** Runs tokens of one sequence and returns the logits of the last. */
  public float[] decode(KvSequence sequence, int... tokens) {
    float[] result = new float[config.vocabulary()];
    decode(
        List.of(Feed.of(sequence, tokens)),
        (feed, token, found) -> System.arraycopy(found, 0, result, 0, result.length));
    return result;
  }

  /** The position of each row, after checking all that could go wrong later. */
  private int[] check(List<Feed> feeds) {
    if (feeds.isEmpty()) {
      throw new IllegalArgumentException("nothing to decode");
    }
    KvCache cache = feeds.get(0).sequence().cache();
    List<KvSequence> seen = new ArrayList<>();
    IntStream.Builder positions = IntStream.builder();
    int last = 0;
    for (Feed feed : feeds) {
      if (feed.count() < 1 || feed.from() < 0 || feed.from() > feed.tokens().length - feed.count()) {
        throw new IllegalArgumentException(
            feed.count() + " tokens from " + feed.from() + " on, of " + feed.tokens().length);
      }
      if (feed.wanted() < 0 || feed.wanted() > feed.count()) {
        throw new IllegalArgumentException("logits of " + feed.wanted() + " tokens out of " + feed.count());
      }
      if (feed.sequence().cache() != cache || seen.contains(feed.sequence())) {
        throw new IllegalArgumentException("sequences of two caches, or one sequence twice");
      }
      seen.add(feed.sequence());
      int length = (int) feed.sequence().length(0);
      for (int i = 0; i < feed.count(); i++) {
        int token = feed.tokens()[feed.from() + i];
        if (token < 0 || token >= config.vocabulary()) {
          throw new IllegalArgumentException("token " + token + " of a vocabulary of " + config.vocabulary());
        }
        positions.add(length + i);
      }
      last = Math.max(last, length + feed.count() - 1);
    }
    config.rope().prepare(last);
    return positions.build().toArray();
  }

  private float[] embed(List<Feed> feeds, int rows) {
    float[] state = new float[rows * config.hidden()];
    int at = 0;
    for (Feed feed : feeds) {
      for (int i = 0; i < feed.count(); i++) {
        model.embedding().row(feed.tokens()[feed.from() + i], state, at);
        at += config.hidden();
      }
    }
    return state;
  }

  /** From {@code qkv} to {@code input}: turns queries and keys, appends, attends. */
  private void attend(int layer, List<Feed> feeds, int[] positions) {
    int rows = positions.length;
    int width = querySize + 2 * rowSize;
    KvMethod method = feeds.get(0).sequence().cache().method();
    boolean turnKeys = !method.keysBeforeRope();
    boolean showQueries = method.needs().contains(Need.OBSERVED_QUERIES);
    each(
        rows,
        r -> {
          float[] row = new float[width];
          qkv.get(r * width, row);
          config.rope().turn(row, 0, config.queryHeads(), positions[r]);
          if (turnKeys) {
            config.rope().turn(row, querySize, config.kvHeads(), positions[r]);
          }
          queries.put(r * querySize, row, 0, querySize);
          keys.put(r * rowSize, row, querySize, rowSize);
          values.put(r * rowSize, row, querySize + rowSize, rowSize);
        });
    long start = System.nanoTime();
    int row = 0;
    for (Feed feed : feeds) {
      int size = feed.count() * rowSize;
      if (showQueries && feed.sequence().length(layer) == 0) {
        // Pages of the first chunk are sealed before attention sees its queries.
        FloatBuffer own = queries.slice(row * querySize, feed.count() * querySize);
        feed.sequence().observe(layer, own, feed.count());
      }
      feed.sequence().append(layer, keys.slice(row * rowSize, size), values.slice(row * rowSize, size), feed.count());
      row += feed.count();
    }
    row = 0;
    for (int i = 0; i < feeds.size(); ) {
      // Sequences with as many new tokens go in one call.
      int count = feeds.get(i).count();
      List<KvSequence> together = new ArrayList<>();
      for (; i < feeds.size() && feeds.get(i).count() == count; i++) {
        together.add(feeds.get(i).sequence());
      }
      int size = together.size() * count * querySize;
      together
          .get(0)
          .cache()
          .attend(layer, together, queries.slice(row * querySize, size), input.slice(row * querySize, size), count);
      row += together.size() * count;
    }
    attentionNanos += System.nanoTime() - start;
    if (probe != null) {
      probe.attended(layer, queries, input, rows);
    }
  }

  private void deliver(List<Feed> feeds, float[] state, LogitSink sink) {
    record Wanted(int row, int feed, int token) {}
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
      int first = begin;
      int count = Math.min(block, wanted.size() - begin);
      normalise(state, model.finalNorm(), count, r -> wanted.get(first + r).row(), input);
      logits = grown(logits, count * vocabulary);
      model.head().apply(input, count, logits);
      for (int i = 0; i < count; i++) {
        logits.get(i * vocabulary, one);
        sink.accept(wanted.get(first + i).feed(), wanted.get(first + i).token(), one);
      }
    }
  }

  private interface RowOf {
    int row(int index);
  }

  /** {@code out[i] = x / rms(x) * weight} for {@code x = state[source(i)]}. */
  private void normalise(float[] state, float[] weight, int rows, RowOf source, FloatBuffer out) {
    int hidden = config.hidden();
    each(
        rows,
        r -> {
          int from = source.row(r) * hidden;
          double squares = 0;
          for (int i = 0; i < hidden; i++) {
            squares += (double) state[from + i] * state[from + i];
          }
          float scale = (float) (1 / Math.sqrt(squares / hidden + config.normEpsilon()));
          float[] row = new float[hidden];
          for (int i = 0; i < hidden; i++) {
            row[i] = state[from + i] * scale * weight[i];
          }
          out.put(r * hidden, row);
        });
  }

  private void add(FloatBuffer from, float[] state, int rows) {
    int hidden = config.hidden();
    each(
        rows,
        r -> {
          float[] row = new float[hidden];
          from.get(r * hidden, row);
          for (int i = 0; i < hidden; i++) {
            state[r * hidden + i] += row[i];
          }
        });
  }

  private static void each(int rows, IntConsumer work) {
    IntStream all = IntStream.range(0, rows);
    (rows >= PARALLEL_ROWS ? all.parallel() : all).forEach(work);
  }

  private void reserve(int rows) {
    input = grown(input, Math.multiplyExact(rows, Math.max(config.hidden(), querySize)));
    output = grown(output, rows * config.hidden());
    qkv = grown(qkv, Math.multiplyExact(rows, querySize + 2 * rowSize));
    queries = grown(queries, rows * querySize);
    keys = grown(keys, rows * rowSize);
    values = grown(values, rows * rowSize);
    gates = grown(gates, Math.multiplyExact(rows, 2 * config.intermediate()));
    activated = grown(activated, rows * config.intermediate());
  }

  private static FloatBuffer grown(FloatBuffer buffer, int floats) {
    return buffer.capacity() >= floats ? buffer : direct(Math.max(floats, buffer.capacity() * 3 / 2));
  }

  private static FloatBuffer direct(int floats) {
    return ByteBuffer.allocateDirect(Math.multiplyExact(floats, Float.BYTES))
        .order(ByteOrder.nativeOrder())
        .asFloatBuffer();
  }
}
