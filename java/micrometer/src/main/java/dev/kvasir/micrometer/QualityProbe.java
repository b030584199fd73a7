package dev.kvasir.micrometer;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import io.micrometer.core.instrument.FunctionCounter;
import io.micrometer.core.instrument.FunctionTimer;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tags;
import io.micrometer.core.instrument.binder.MeterBinder;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.WeakHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.stream.IntStream;

/**
 * What compression costs attention, measured while a cache serves: of a few sequences it keeps the 16-bit rows of one kv head in a
 * few layers, and now and then computes what their query heads would have got from those.
 *
 * <pre>{@code
 * QualityProbe probe = QualityProbe.on(cache).layers(0, 15, 31).every(64).build();
 * probe.append(sequence, layer, keys, values, tokens);    // in place of sequence.append
 * probe.attend(sequence, layer, queries, outputs, tokens); // in place of sequence.attend
 * probe.bindTo(registry);
 * }</pre>
 *
 * <p>So are {@link #truncate}, {@link #guess} and {@link #keep}.
 *
 * <p>The gauge {@code kvasir.quality.error} is the error of outputs as a share of their size, {@code |got - exact| / |exact|}, a
 * mean to which a new sample gives a tenth. A sequence is watched from its first token on, and no longer when it is longer than
 * told, or its rows came another way. The probe never makes a call fail: where it cannot follow, it stops watching. {@code
 * docs/metrics.md} says what it costs.
 */
public final class QualityProbe implements MeterBinder, AutoCloseable {

  private static final double WEIGHT_OF_NEWEST = 0.1;

  /** {@link KvSequence#guess}. */
  private static final int MOST_GUESSES = 64;

  private static final List<String> METERS =
      List.of("kvasir.quality.error", "kvasir.quality.bytes", "kvasir.quality.samples", "kvasir.quality.probe");

  private final KvCache cache;
  private final int[] layers;
  private final int every;
  private final int most;
  private final int longest;
  private final Tags tags;
  private final KvCache exact;
  private final Snapshot<Long> held = new Snapshot<>(this::bytes);
  private final Map<KvSequence, Watched> watched = new WeakHashMap<>();
  private double error = Double.NaN;
  private long samples;
  private long calls;
  private long nanos;

  private QualityProbe(Builder builder) {
    this.cache = builder.cache;
    this.layers = builder.layers;
    this.every = builder.every;
    this.most = builder.sequences;
    this.longest = builder.tokens;
    this.tags = Tags.of("cache", builder.name);
    this.exact = KvCache.builder(headsOf(cache.geometry(), layers)).threads(1).build();
  }

  /**
   * A builder of a probe.
   *
   * @param cache the cache, whose keys come after RoPE
   * @return a new builder
   */
  public static Builder on(KvCache cache) {
    return new Builder(cache);
  }

  /**
   * {@link KvSequence#append(int, float[], float[], int)}, seen by the probe.
   *
   * @param sequence a sequence of the cache; those of others are not watched
   * @param layer 0 .. layers-1
   * @param keys {@code [tokens][kvHeads][headDim]}, after RoPE
   * @param values the same shape
   * @param tokens 1 or more
   */
  public void append(KvSequence sequence, int layer, float[] keys, float[] values, int tokens) {
    sequence.append(layer, keys, values, tokens);
    int probed = indexOf(layer);
    if (probed >= 0 && sequence.cache() == cache) {
      follow(() -> copy(sequence, layer, probed, keys, values, tokens), sequence);
    }
  }

  /**
   * {@link KvSequence#attend(int, float[], float[], int)}, seen by the probe.
   *
   * @param sequence a sequence of the cache
   * @param layer 0 .. layers-1
   * @param queries {@code [tokens][queryHeads][headDim]}
   * @param outputs the same shape; may be the queries
   * @param tokens 1 or more
   */
  public void attend(KvSequence sequence, int layer, float[] queries, float[] outputs, int tokens) {
    int probed = indexOf(layer);
    // What is too short is for the call to refuse.
    if (probed < 0 || tokens < 1 || queries.length / cache.geometry().querySize(layer) < tokens || !isDue(sequence)) {
      sequence.attend(layer, queries, outputs, tokens);
      return;
    }
    float[] query = newest(layer, probed, queries, tokens);
    sequence.attend(layer, queries, outputs, tokens);
    follow(() -> compare(sequence, layer, probed, query, newest(layer, probed, outputs, tokens)), sequence);
  }

  /**
   * {@link KvSequence#truncate}, seen by the probe. It follows others only if they are of 64 tokens or more.
   *
   * @param sequence a sequence of the cache
   * @param length how many tokens stay
   */
  public void truncate(KvSequence sequence, long length) {
    sequence.truncate(length);
    follow(rows -> rows.truncate(length), sequence);
  }

  /**
   * {@link KvSequence#guess}, seen by the probe.
   *
   * @param sequence a sequence of the cache
   */
  public void guess(KvSequence sequence) {
    sequence.guess();
    follow(KvSequence::guess, sequence);
  }

  /**
   * {@link KvSequence#keep}, seen by the probe if {@link #guess} was.
   *
   * @param sequence a sequence of the cache
   * @param kept the guesses that stay, counted from 0, ascending; none of them for none
   */
  public void keep(KvSequence sequence, int... kept) {
    sequence.keep(kept);
    follow(rows -> rows.keep(kept), sequence);
  }

  /**
   * The mean error.
   *
   * @return as a share of outputs; NaN before the first sample
   */
  public synchronized double error() {
    return error;
  }

  /**
   * Attentions that were computed twice.
   *
   * @return their number
   */
  public synchronized long samples() {
    return samples;
  }

  /**
   * Bytes of the rows that are kept.
   *
   * @return their number
   */
  public long bytes() {
    return exact.stats().bytes();
  }

  /**
   * Sequences that are watched now.
   *
   * @return their number
   */
  public synchronized int watchedSequences() {
    return watched.size();
  }

  /**
   * Adds {@code kvasir.quality.error}, {@code .samples}, {@code .probe} (time that the probe has taken, by sample and append)
   * and {@code .bytes} to a registry.
   *
   * @param registry the registry
   */
  @Override
  public void bindTo(MeterRegistry registry) {
    for (String name : METERS) {
      Names.free(registry, name, tags);
    }
    // Weak references: who appends has the probe, and a registry would hold it, and its cache, for ever.
    Gauge.builder("kvasir.quality.error", this, QualityProbe::error)
        .tags(tags)
        .description("Error of attention by compression, as a share of outputs")
        .register(registry);
    Gauge.builder("kvasir.quality.bytes", held, bytes -> bytes.value(Long::doubleValue))
        .tags(tags)
        .baseUnit("bytes")
        .register(registry);
    FunctionCounter.builder("kvasir.quality.samples", this, QualityProbe::samples).tags(tags).register(registry);
    FunctionTimer.builder("kvasir.quality.probe", this, QualityProbe::calls, QualityProbe::nanos, TimeUnit.NANOSECONDS)
        .tags(tags)
        .register(registry);
  }

  /** Ends the probe, not the cache. */
  @Override
  public synchronized void close() {
    watched.clear();
    exact.close();
  }

  private synchronized long calls() {
    return calls;
  }

  private synchronized double nanos() {
    return nanos;
  }

  /** Work of the probe's own, which may fail and must not be noticed. */
  private synchronized void follow(Runnable work, KvSequence sequence) {
    long start = System.nanoTime();
    try {
      work.run();
    } catch (RuntimeException e) {
      forget(sequence);
    }
    calls++;
    nanos += System.nanoTime() - start;
  }

  /** The same change of the rows of a sequence that is watched. */
  private void follow(Consumer<KvSequence> change, KvSequence sequence) {
    follow(
        () -> {
          Watched found = watched.get(sequence);
          if (found != null) {
            change.accept(found.rows);
          }
        },
        sequence);
  }

  private void copy(KvSequence sequence, int layer, int probed, float[] keys, float[] values, int tokens) {
    long before = sequence.length(layer) - tokens;
    Watched found = watched.get(sequence);
    if (found == null) {
      if (before != 0 || probed != 0 || !hasRoom()) {
        return;
      }
      found = new Watched(exact.newSequence());
      watched.put(sequence, found);
    }
    long kept = found.rows.length(probed);
    // The sequence was cut meanwhile, and of guesses that went nobody says which. As many tokens hold all of them.
    boolean doubtful = kept > before && kept - before < MOST_GUESSES;
    if (kept > before) {
      found.rows.truncate(before);
    }
    if (doubtful || kept < before || before + tokens > longest) {
      forget(sequence);
      return;
    }
    int head = head(layer, probed);
    int dim = cache.geometry().headDim(layer);
    int row = cache.geometry().rowSize(layer);
    found.rows.append(
        probed, rows(keys, 0, tokens, row, head * dim, dim), rows(values, 0, tokens, row, head * dim, dim), tokens);
  }

  private void compare(KvSequence sequence, int layer, int probed, float[] query, float[] got) {
    Watched found = watched.get(sequence);
    if (found == null) {
      return;
    }
    if (found.rows.length(probed) != sequence.length(layer)) {
      forget(sequence);
      return;
    }
    float[] wanted = new float[query.length];
    found.rows.attend(probed, query, wanted);
    double difference = 0;
    double size = 0;
    for (int i = 0; i < wanted.length; i++) {
      difference += (double) (got[i] - wanted[i]) * (got[i] - wanted[i]);
      size += (double) wanted[i] * wanted[i];
    }
    if (size > 0) {
      double share = Math.sqrt(difference / size);
      error = samples == 0 ? share : error + WEIGHT_OF_NEWEST * (share - error);
      samples++;
    }
  }

  private synchronized boolean isDue(KvSequence sequence) {
    Watched found = watched.get(sequence);
    return found != null && found.attends++ / layers.length % every == 0;
  }

  /** Whether one more can be watched, now that those that were closed are gone. */
  private boolean hasRoom() {
    watched.entrySet().removeIf(
        entry -> {
          try {
            entry.getKey().length(0);
            return false;
          } catch (IllegalStateException e) {
            entry.getValue().rows.close();
            return true;
          }
        });
    return watched.size() < most;
  }

  private void forget(KvSequence sequence) {
    Watched found = watched.remove(sequence);
    if (found != null) {
      found.rows.close();
    }
  }

  /** The query heads of the probed kv head, of the newest token. */
  private float[] newest(int layer, int probed, float[] all, int tokens) {
    KvGeometry geometry = cache.geometry();
    int width = geometry.queryHeads(layer) / geometry.kvHeads(layer) * geometry.headDim(layer);
    return rows(all, tokens - 1, 1, geometry.querySize(layer), head(layer, probed) * width, width);
  }

  /** Another head in each layer. */
  private int head(int layer, int probed) {
    return probed % cache.geometry().kvHeads(layer);
  }

  private int indexOf(int layer) {
    return Arrays.binarySearch(layers, layer);
  }

  private static float[] rows(float[] from, int first, int tokens, int stride, int offset, int width) {
    float[] part = new float[tokens * width];
    for (int i = 0; i < tokens; i++) {
      System.arraycopy(from, (first + i) * stride + offset, part, i * width, width);
    }
    return part;
  }

  /** One kv head of each probed layer, with its query heads. */
  private static KvGeometry headsOf(KvGeometry whole, int[] layers) {
    KvGeometry.Builder heads = KvGeometry.builder().layers(layers.length).kvHeads(1);
    for (int i = 0; i < layers.length; i++) {
      int layer = layers[i];
      int group = whole.queryHeads(layer) / whole.kvHeads(layer);
      heads.queryHeads(i, group).headDim(i, whole.headDim(layer)).softmaxScale(i, whole.softmaxScale(layer));
      if (whole.softCap(layer) > 0) {
        heads.softCap(i, whole.softCap(layer));
      }
      if (whole.slidingWindow(layer) > 0) {
        heads.slidingWindow(i, whole.slidingWindow(layer));
      }
      if (!whole.sinkLogits(layer).isEmpty()) {
        int first = i % whole.kvHeads(layer) * group;
        float[] logits = new float[group];
        for (int j = 0; j < group; j++) {
          logits[j] = whole.sinkLogits(layer).get(first + j);
        }
        heads.sinkLogits(i, logits);
      }
    }
    return heads.build();
  }

  private static final class Watched {
    final KvSequence rows;
    long attends;

    Watched(KvSequence rows) {
      this.rows = rows;
    }
  }

  /** Settings. Not for use by several threads. */
  public static final class Builder {

    private final KvCache cache;
    private int[] layers;
    private int every = 64;
    private int sequences = 1;
    private int tokens = 32768;
    private String name = "kvasir";

    private Builder(KvCache cache) {
      this.cache = Objects.requireNonNull(cache, "cache");
      KvGeometry geometry = cache.geometry();
      int[] own = IntStream.range(0, geometry.layers()).filter(layer -> hasOwnRows(geometry, layer)).toArray();
      this.layers = own.length == 0 ? own : sorted(own[0], own[own.length / 2], own[own.length - 1]);
    }

    /**
     * The layers that are watched: unless told otherwise the first, the middle and the last one of those that have keys and
     * values of their own.
     *
     * @param layers at least one; their keys and values are their own
     * @return this builder
     * @throws IllegalArgumentException if there is no such layer, or it shares rows
     */
    public Builder layers(int... layers) {
      KvGeometry geometry = cache.geometry();
      for (int layer : layers) {
        if (!hasOwnRows(geometry, layer)) {
          throw new IllegalArgumentException("layer " + layer + " has no keys and values of its own");
        }
      }
      if (layers.length == 0) {
        throw new IllegalArgumentException("no layers");
      }
      this.layers = sorted(layers);
      return this;
    }

    /**
     * Of how many steps of a watched sequence the attention of one is computed twice: 64 unless told otherwise.
     *
     * @param steps 1 or more
     * @return this builder
     */
    public Builder every(int steps) {
      this.every = positive("steps", steps);
      return this;
    }

    /**
     * How many sequences are watched at a time: 1 unless told otherwise.
     *
     * @param sequences 1 or more
     * @return this builder
     */
    public Builder sequences(int sequences) {
      this.sequences = positive("sequences", sequences);
      return this;
    }

    /**
     * From which length on a sequence is watched no longer: 32768 tokens unless told otherwise.
     *
     * @param tokens 1 or more
     * @return this builder
     */
    public Builder tokens(int tokens) {
      this.tokens = positive("tokens", tokens);
      return this;
    }

    /**
     * The value of the tag {@code cache}.
     *
     * @param name the name
     * @return this builder
     */
    public Builder name(String name) {
      this.name = Objects.requireNonNull(name, "name");
      return this;
    }

    /**
     * The probe.
     *
     * @return a new probe, to be closed by the caller
     * @throws IllegalArgumentException if the cache's method stores keys before RoPE, or no layer has rows of its own
     */
    public QualityProbe build() {
      if (cache.method().keysBeforeRope()) {
        throw new IllegalArgumentException("method " + cache.method().name() + " stores keys before RoPE");
      }
      if (layers.length == 0) {
        throw new IllegalArgumentException("no layer has keys and values of its own");
      }
      return new QualityProbe(this);
    }

    private static boolean hasOwnRows(KvGeometry geometry, int layer) {
      return !geometry.latent(layer) && geometry.source(layer) == layer;
    }

    private static int positive(String name, int value) {
      if (value < 1) {
        throw new IllegalArgumentException(name + " is " + value + ", not 1 or more");
      }
      return value;
    }

    private static int[] sorted(int... layers) {
      return Arrays.stream(layers).sorted().distinct().toArray();
    }
  }
}
