package dev.kvasir.runner;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Precision;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Runs a model: takes some tokens of each of several sequences, appends their keys and values to the cache, attends
 * there, and hands out logits.
 *
 * <p>All tokens of a call go through each matrix together, so a batch of sequences costs little more than one. On a CPU,
 * what a sequence gets does not depend on what else is in the call, not by a bit; on a GPU sums of products are taken in
 * an order that goes by the number of rows, so it may differ in the last bits of a float. Not for use by several threads.
 *
 * <p>A GPU checks keys and values when it gets there: rows that a cache refuses are reported by a later call (see {@link
 * KvCache#append(int, List, int[], dev.kvasir.Rows, dev.kvasir.Rows, dev.kvasir.DeviceStream)}).
 */
public final class Decoder implements AutoCloseable {

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

    /**
     * Whether the likeliest token is all that is wanted of a feed. A GPU finds it without handing logits out.
     *
     * @param feed which of the feeds
     */
    default boolean wantsToken(int feed) {
      return false;
    }

    /**
     * The likeliest token, in place of {@link #accept}, for feeds of which no more is wanted.
     *
     * @param feed which of the feeds
     * @param token index in the feed's array
     * @param likeliest the token with the highest logit, the first of equals; -1 if that is no finite number
     */
    default void likeliest(int feed, int token, int likeliest) {}
  }

  private static final String CUDA = "cuda";

  /** Watches attention. */
  @FunctionalInterface
  public interface Probe {
    /** Queries and outputs of one layer, {@code [rows][queryHeads][headDim]}, in the order of the feeds. */
    void attended(int layer, FloatBuffer queries, FloatBuffer outputs, int rows);
  }

  /** A layer's weights, where they are computed with. */
  private record Layer(
      Compute.Vector attentionNorm,
      Compute.Matrix heads,
      Compute.@Nullable Vector queryNorm,
      Compute.@Nullable Vector keyNorm,
      Compute.Matrix output,
      Compute.Vector feedNorm,
      Compute.Matrix gateAndUp,
      Compute.Matrix down) {}

  private final Model model;
  private final ModelConfig config;
  private final Compute compute;

  private final Compute.Matrix embedding;
  private final List<Layer> layers = new ArrayList<>();
  private final Compute.Vector finalNorm;
  private final Compute.Matrix head;

  private final Compute.Rows state;
  private final Compute.Rows gathered;
  private final Compute.Rows normed;
  private final Compute.Rows heads;
  private final Compute.Rows attended;
  private final Compute.Rows change;
  private final Compute.Rows gateAndUp;
  private final Compute.Rows gated;
  private final Compute.Rows logits;

  private @Nullable Probe probe;
  private long attentionNanos;
  private boolean closed;

  /** A runner of these weights, on the CPU. */
  public Decoder(Model model) {
    this(model, new HostCompute(model.config()));
  }

  /**
   * A runner of these weights on a backend: {@code "cuda"}, where weights and activations are on the GPU and the cache
   * must be, too; any other name computes on the CPU, as {@link #Decoder(Model)} does.
   *
   * @throws dev.kvasir.error.NativeUnavailableException if the class path or this machine has not what CUDA needs
   */
  public Decoder(Model model, String backend, Precision precision) {
    this(
        model,
        backend.equals(CUDA) ? CudaCompute.create(model.config(), precision) : new HostCompute(model.config()));
  }

  Decoder(Model model, Compute compute) {
    this.model = model;
    this.config = model.config();
    this.compute = compute;
    try {
      Model.Projection embedded = new Model.Projection(model.embedding(), null);
      this.embedding = compute.matrix(embedded);
      for (Model.Layer layer : model.layers()) {
        layers.add(
            new Layer(
                compute.vector(layer.attentionNorm()),
                compute.matrix(layer.queries(), layer.keys(), layer.values()),
                layer.queryNorm() == null ? null : compute.vector(layer.queryNorm()),
                layer.keyNorm() == null ? null : compute.vector(layer.keyNorm()),
                compute.matrix(layer.output()),
                compute.vector(layer.feedNorm()),
                compute.matrix(layer.gate(), layer.up()),
                compute.matrix(layer.down())));
      }
      this.finalNorm = compute.vector(model.finalNorm());
      this.head =
          model.head() == model.embedding() ? embedding : compute.matrix(new Model.Projection(model.head(), null));
      int querySize = config.queryHeads() * config.headDim();
      int rowSize = config.kvHeads() * config.headDim();
      state = compute.state(config.hidden());
      gathered = compute.state(config.hidden());
      normed = compute.input(config.hidden());
      heads = compute.product(querySize, rowSize, rowSize);
      attended = compute.input(querySize);
      change = compute.product(config.hidden());
      gateAndUp = compute.product(config.intermediate(), config.intermediate());
      gated = compute.input(config.intermediate());
      logits = compute.logits(config.vocabulary());
    } catch (RuntimeException | Error e) {
      compute.close();
      throw e;
    }
  }

  /** Gives memory back that is not this JVM's, such as a GPU's. The decoder is of no use then. Closing again does nothing. */
  @Override
  public void close() {
    if (!closed) {
      closed = true;
      compute.close();
    }
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
    return HostCompute.widened(model.layers().get(layer).output().weights());
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
   * @throws IllegalStateException if the decoder, the cache or a sequence is closed
   * @throws dev.kvasir.error.BudgetExceededException if the tokens do not fit the cache's budget
   * @throws java.io.UncheckedIOException if the file that the weights are mapped from was cut short: see {@link Model}
   */
  public void decode(List<Feed> feeds, LogitSink sink) {
    if (closed) {
      throw new IllegalStateException("the decoder is closed");
    }
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
    boolean turnKeys = !feeds.get(0).sequence().cache().method().keysBeforeRope();
    compute.begin(feeds, tokens, positions);
    if (probe == null) {
      compute.run(() -> layers(tokens.length, turnKeys));
    } else {
      layers(tokens.length, turnKeys);
    }
  }

  /** From tokens to the last state. */
  private void layers(int rows, boolean turnKeys) {
    compute.embed(embedding, state);
    compute.norm(state, rows, layers.get(0).attentionNorm(), normed);
    for (int number = 0; number < layers.size(); number++) {
      Layer layer = layers.get(number);
      compute.project(normed, rows, layer.heads(), heads);
      compute.heads(heads, layer.queryNorm(), layer.keyNorm(), turnKeys);
      attend(number, rows);
      compute.project(attended, rows, layer.output(), change);
      compute.add(change, state, layer.feedNorm(), normed);
      compute.project(normed, rows, layer.gateAndUp(), gateAndUp);
      compute.swiglu(gateAndUp, gated);
      compute.project(gated, rows, layer.down(), change);
      boolean last = number == layers.size() - 1;
      compute.add(change, state, last ? null : layers.get(number + 1).attentionNorm(), normed);
    }
  }

  /**
   * The operations of the step that was run last, each kind of them for all layers, to be run again on what rows hold:
   * for those who time them. Attention is not among them, because it appends.
   */
  Map<String, Runnable> kinds(int rows) {
    Map<String, Runnable> kinds = new LinkedHashMap<>();
    kinds.put("project heads", () -> layers.forEach(layer -> compute.project(normed, rows, layer.heads(), heads)));
    kinds.put("heads", () -> layers.forEach(layer -> compute.heads(heads, layer.queryNorm(), layer.keyNorm(), true)));
    kinds.put("project output", () -> layers.forEach(layer -> compute.project(attended, rows, layer.output(), change)));
    kinds.put("add and norm", () -> layers.forEach(layer -> compute.add(change, state, layer.feedNorm(), normed)));
    kinds.put(
        "project gate, up", () -> layers.forEach(layer -> compute.project(normed, rows, layer.gateAndUp(), gateAndUp)));
    kinds.put("swiglu", () -> layers.forEach(layer -> compute.swiglu(gateAndUp, gated)));
    kinds.put("project down", () -> layers.forEach(layer -> compute.project(gated, rows, layer.down(), change)));
    kinds.put("add and norm again", () -> layers.forEach(layer -> compute.add(change, state, layer.feedNorm(), normed)));
    kinds.put("embed", () -> compute.embed(embedding, state));
    kinds.put("last norm", () -> compute.norm(state, rows, finalNorm, normed));
    kinds.put("project logits", () -> compute.project(normed, rows, head, logits));
    return kinds;
  }

  private void attend(int layer, int rows) {
    long start = System.nanoTime();
    compute.append(layer, heads);
    compute.attend(layer, heads, attended);
    attentionNanos += System.nanoTime() - start;
    if (probe != null) {
      probe.attended(layer, compute.queries(heads), compute.outputs(attended), rows);
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
    int block = compute.logitRows(config.vocabulary());
    for (int begin = 0; begin < wanted.size(); begin += block) {
      deliverBlock(wanted.subList(begin, Math.min(wanted.size(), begin + block)), sink);
    }
  }

  /** As many as there is room for. */
  private void deliverBlock(List<Wanted> part, LogitSink sink) {
    int count = part.size();
    compute.gather(state, part.stream().mapToInt(Wanted::row).toArray(), count, gathered);
    compute.norm(gathered, count, finalNorm, normed);
    compute.project(normed, count, head, logits);
    boolean tokens = part.stream().anyMatch(each -> sink.wantsToken(each.feed()));
    boolean rows = part.stream().anyMatch(each -> !sink.wantsToken(each.feed()));
    int[] best = tokens ? compute.likeliest(logits, count) : new int[0];
    FloatBuffer found = rows ? compute.read(logits, count) : null;
    float[] one = new float[rows ? config.vocabulary() : 0];
    for (int i = 0; i < count; i++) {
      Wanted each = part.get(i);
      if (sink.wantsToken(each.feed())) {
        sink.likeliest(each.feed(), each.token(), best[i]);
      } else if (found != null) {
        found.get(i * one.length, one);
        sink.accept(each.feed(), each.token(), one);
      }
    }
  }
}
