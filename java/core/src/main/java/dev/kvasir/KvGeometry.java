package dev.kvasir;

import dev.kvasir.internal.Checks;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * The shape of a model's attention: layers, heads, channels. Immutable; layers may differ.
 *
 * <pre>{@code
 * KvGeometry geometry = KvGeometry.builder()
 *     .layers(32).queryHeads(32).kvHeads(8).headDim(128)
 *     .slidingWindow(3, 4096)   // layer 3 sees the newest 4096 tokens only
 *     .build();
 * }</pre>
 */
public final class KvGeometry {

  private record Layer(
      int queryHeads,
      int kvHeads,
      int headDim,
      int valueDim,
      boolean latent,
      long slidingWindow,
      float softmaxScale,
      float softCap,
      List<Float> sinkLogits,
      int source) {}

  /** In place of a source: the layer has keys and values of its own. */
  private static final int OWN = -1;

  private final List<Layer> layers;

  private KvGeometry(List<Layer> layers) {
    this.layers = List.copyOf(layers);
  }

  /**
   * A builder without settings; layers, query heads, kv heads and head dim are required.
   *
   * @return a new builder
   */
  public static Builder builder() {
    return new Builder();
  }

  /**
   * The number of layers.
   *
   * @return 1..4096
   */
  public int layers() {
    return layers.size();
  }

  /**
   * Query heads of a layer.
   *
   * @param layer 0 .. layers-1
   * @return a multiple of the layer's kv heads
   * @throws IllegalArgumentException if there is no such layer
   */
  public int queryHeads(int layer) {
    return layer(layer).queryHeads;
  }

  /**
   * Key and value heads of a layer.
   *
   * @param layer 0 .. layers-1
   * @return 1 or more
   * @throws IllegalArgumentException if there is no such layer
   */
  public int kvHeads(int layer) {
    return layer(layer).kvHeads;
  }

  /**
   * Channels of a head, that is, of its keys and queries.
   *
   * @param layer 0 .. layers-1
   * @return a multiple of 16 in 32..256; of a row of {@link Builder#latent}, up to 576
   * @throws IllegalArgumentException if there is no such layer
   */
  public int headDim(int layer) {
    return layer(layer).headDim;
  }

  /**
   * Channels of a head's values and outputs.
   *
   * @param layer 0 .. layers-1
   * @return the head dim, unless keys and values share a row
   * @throws IllegalArgumentException if there is no such layer
   */
  public int valueDim(int layer) {
    return layer(layer).valueDim;
  }

  /**
   * Whether keys and values of a layer share a row: {@link Builder#latent}.
   *
   * @param layer 0 .. layers-1
   * @return true if values are the first channels of keys
   * @throws IllegalArgumentException if there is no such layer
   */
  public boolean latent(int layer) {
    return layer(layer).latent;
  }

  /**
   * How many of the newest tokens a layer sees, the query's own included.
   *
   * @param layer 0 .. layers-1
   * @return the number of tokens; 0 for all of them
   * @throws IllegalArgumentException if there is no such layer
   */
  public long slidingWindow(int layer) {
    return layer(layer).slidingWindow;
  }

  /**
   * What scores are multiplied by before the softmax.
   *
   * @param layer 0 .. layers-1
   * @return the scale; 1/sqrt(headDim) unless set
   * @throws IllegalArgumentException if there is no such layer
   */
  public float softmaxScale(int layer) {
    return layer(layer).softmaxScale;
  }

  /**
   * The cap of a layer's scaled scores: they become {@code cap * tanh(score / cap)}.
   *
   * @param layer 0 .. layers-1
   * @return the cap; 0 for none
   * @throws IllegalArgumentException if there is no such layer
   */
  public float softCap(int layer) {
    return layer(layer).softCap;
  }

  /**
   * The learned sinks of a layer: a logit for each query head that takes part in the denominator of its softmax.
   *
   * @param layer 0 .. layers-1
   * @return by query head; empty for none
   * @throws IllegalArgumentException if there is no such layer
   */
  public List<Float> sinkLogits(int layer) {
    return layer(layer).sinkLogits;
  }

  /**
   * The layer whose keys and values a layer attends to.
   *
   * @param layer 0 .. layers-1
   * @return the layer itself, unless {@link Builder#source} says otherwise
   * @throws IllegalArgumentException if there is no such layer
   */
  public int source(int layer) {
    int source = layer(layer).source;
    return source == OWN ? layer : source;
  }

  /**
   * Elements of one token's keys in a layer, and of its values, unless the two share a row.
   *
   * @param layer 0 .. layers-1
   * @return kvHeads * headDim
   * @throws IllegalArgumentException if there is no such layer
   */
  public int rowSize(int layer) {
    Layer l = layer(layer);
    return l.kvHeads * l.headDim;
  }

  /**
   * Elements of one token's queries in a layer.
   *
   * @param layer 0 .. layers-1
   * @return queryHeads * headDim
   * @throws IllegalArgumentException if there is no such layer
   */
  public int querySize(int layer) {
    Layer l = layer(layer);
    return l.queryHeads * l.headDim;
  }

  /**
   * Elements of one token's outputs in a layer.
   *
   * @param layer 0 .. layers-1
   * @return queryHeads * valueDim
   * @throws IllegalArgumentException if there is no such layer
   */
  public int outputSize(int layer) {
    Layer l = layer(layer);
    return l.queryHeads * l.valueDim;
  }

  private Layer layer(int layer) {
    return layers.get(Checks.layer(layer, layers.size()));
  }

  @Override
  public boolean equals(@Nullable Object other) {
    return other instanceof KvGeometry && layers.equals(((KvGeometry) other).layers);
  }

  @Override
  public int hashCode() {
    return layers.hashCode();
  }

  @Override
  public String toString() {
    boolean uniform = layers.stream().distinct().count() == 1;
    return "KvGeometry[" + layers.size() + " layers: " + (uniform ? layers.get(0) : layers) + "]";
  }

  /**
   * Settings for a geometry. A setting without a layer number is for every layer that has none of its own. Not for
   * use by several threads.
   */
  public static final class Builder {

    private static final int MAX_LAYERS = 4096;
    private static final int MAX_HEADS = 4096;

    private int layers;
    private final Setting<Integer> queryHeads = new Setting<>("queryHeads", null);
    private final Setting<Integer> kvHeads = new Setting<>("kvHeads", null);
    private final Setting<Integer> headDim = new Setting<>("headDim", null);
    private final Setting<LatentRow> latent = new Setting<>("latent", LatentRow.NONE);
    private final Setting<Long> slidingWindow = new Setting<>("slidingWindow", 0L);
    private final Setting<Float> softmaxScale = new Setting<>("softmaxScale", Float.NaN);
    private final Setting<Float> softCap = new Setting<>("softCap", 0f);
    private final Setting<List<Float>> sinkLogits = new Setting<>("sinkLogits", List.of());
    private final Setting<Integer> source = new Setting<>("source", OWN);

    private Builder() {}

    /**
     * The number of layers. Required.
     *
     * @param layers 1..4096
     * @return this builder
     */
    public Builder layers(int layers) {
      Checks.require(layers >= 1 && layers <= MAX_LAYERS, "layers is " + layers + ", not 1.." + MAX_LAYERS);
      this.layers = layers;
      return this;
    }

    /**
     * Query heads of every layer. Required.
     *
     * @param heads 1 or more, a multiple of the kv heads
     * @return this builder
     */
    public Builder queryHeads(int heads) {
      queryHeads.everywhere(requireHeads("queryHeads", heads));
      return this;
    }

    /**
     * Query heads of one layer.
     *
     * @param layer 0 .. layers-1
     * @param heads 1 or more, a multiple of the layer's kv heads
     * @return this builder
     */
    public Builder queryHeads(int layer, int heads) {
      queryHeads.at(layer, requireHeads("queryHeads", heads));
      return this;
    }

    /**
     * Key and value heads of every layer. Required.
     *
     * @param heads 1 or more
     * @return this builder
     */
    public Builder kvHeads(int heads) {
      kvHeads.everywhere(requireHeads("kvHeads", heads));
      return this;
    }

    /**
     * Key and value heads of one layer.
     *
     * @param layer 0 .. layers-1
     * @param heads 1 or more
     * @return this builder
     */
    public Builder kvHeads(int layer, int heads) {
      kvHeads.at(layer, requireHeads("kvHeads", heads));
      return this;
    }

    /**
     * Channels per head in every layer. Required.
     *
     * @param channels a multiple of 16 in 32..256
     * @return this builder
     */
    public Builder headDim(int channels) {
      headDim.everywhere(requireHeadDim(channels));
      return this;
    }

    /**
     * Channels per head in one layer.
     *
     * @param layer 0 .. layers-1
     * @param channels a multiple of 16 in 32..256
     * @return this builder
     */
    public Builder headDim(int layer, int channels) {
      headDim.at(layer, requireHeadDim(channels));
      return this;
    }

    /**
     * Keys and values share a row in every layer, as in multi-head latent attention: one kv head, whose values are the
     * first channels of its keys. In place of {@code kvHeads} and {@code headDim}. Rows are stored once, as the method
     * stores keys, and appended by {@link KvSequence#append(int, Rows, int)}; queries have {@code rowDim} channels and
     * outputs {@code valueDim}. For methods {@code HalfPrecision}, {@code Uniform} and {@code PmKvq} without key scaling.
     * Attention decodes rows first, on every backend: {@link KvStats#fallbackTiles} counts all of it.
     *
     * @param rowDim channels of a row, a multiple of 64 in 64..576
     * @param valueDim how many of them are the values, a multiple of 16
     * @return this builder
     */
    public Builder latent(int rowDim, int valueDim) {
      latent.everywhere(new LatentRow(rowDim, valueDim));
      return this;
    }

    /**
     * {@link #latent(int, int)} for one layer.
     *
     * @param layer 0 .. layers-1
     * @param rowDim channels of a row, a multiple of 64 in 64..576
     * @param valueDim how many of them are the values, a multiple of 16
     * @return this builder
     */
    public Builder latent(int layer, int rowDim, int valueDim) {
      latent.at(layer, new LatentRow(rowDim, valueDim));
      return this;
    }

    /**
     * How many of the newest tokens every layer sees, the query's own included. 0, for all, is the default.
     *
     * @param tokens 0 or more
     * @return this builder
     */
    public Builder slidingWindow(long tokens) {
      slidingWindow.everywhere(requireWindow(tokens));
      return this;
    }

    /**
     * How many of the newest tokens one layer sees, the query's own included.
     *
     * @param layer 0 .. layers-1
     * @param tokens 0 or more; 0 for all
     * @return this builder
     */
    public Builder slidingWindow(int layer, long tokens) {
      slidingWindow.at(layer, requireWindow(tokens));
      return this;
    }

    /**
     * What scores are multiplied by before the softmax, in every layer. 1/sqrt(headDim) is the default.
     *
     * @param scale positive and finite
     * @return this builder
     */
    public Builder softmaxScale(float scale) {
      softmaxScale.everywhere(requireScale(scale));
      return this;
    }

    /**
     * What scores are multiplied by before the softmax, in one layer.
     *
     * @param layer 0 .. layers-1
     * @param scale positive and finite
     * @return this builder
     */
    public Builder softmaxScale(int layer, float scale) {
      softmaxScale.at(layer, requireScale(scale));
      return this;
    }

    /**
     * The cap of scaled scores in every layer: they become {@code cap * tanh(score / cap)} before the softmax, as in
     * Gemma 2. 0, for none, is the default. Scores of a GPU are off by up to a four-millionth of the cap.
     *
     * @param cap 0 or more, finite
     * @return this builder
     */
    public Builder softCap(float cap) {
      softCap.everywhere(requireCap(cap));
      return this;
    }

    /**
     * The cap of scaled scores in one layer.
     *
     * @param layer 0 .. layers-1
     * @param cap 0 or more, finite
     * @return this builder
     */
    public Builder softCap(int layer, float cap) {
      softCap.at(layer, requireCap(cap));
      return this;
    }

    /**
     * The learned sinks of one layer, as gpt-oss has them: a logit for each query head that takes part in the softmax's
     * denominator and has no value.
     *
     * @param layer 0 .. layers-1
     * @param logits by query head, finite
     * @return this builder
     */
    public Builder sinkLogits(int layer, float... logits) {
      List<Float> list = new ArrayList<>(logits.length);
      for (float logit : logits) {
        Checks.require(Float.isFinite(logit), "a sink logit is " + logit);
        list.add(logit);
      }
      sinkLogits.at(layer, List.copyOf(list));
      return this;
    }

    /**
     * One layer attends to the keys and values of another one, which has its own; appends to it are refused. Heads and
     * head dim must be those of the source, and its sliding window no longer; scale, cap and sinks are its own. Of the
     * method, what it says of the source counts.
     *
     * @param layer 0 .. layers-1
     * @param source another layer
     * @return this builder
     */
    public Builder source(int layer, int source) {
      Checks.requireNotNegative("source", source);
      this.source.at(layer, source);
      return this;
    }

    /**
     * The geometry.
     *
     * @return a new geometry
     * @throws IllegalArgumentException if a required setting is missing, a setting is for a layer that does not
     *     exist, query heads are no multiple of kv heads, there is not one sink logit for each query head, or a layer does
     *     not fit the one whose keys and values it takes
     */
    public KvGeometry build() {
      Checks.require(layers > 0, "layers is not set");
      for (Setting<?> setting : 
          List.of(queryHeads, kvHeads, headDim, latent, slidingWindow, softmaxScale, softCap, sinkLogits, source)) {
        setting.requireLayersBelow(layers);
      }
      List<Layer> all = new ArrayList<>(layers);
      for (int layer = 0; layer < layers; layer++) {
        all.add(layer(layer));
      }
      for (int layer = 0; layer < layers; layer++) {
        requireSource(all, layer);
      }
      return new KvGeometry(all);
    }

    private static void requireSource(List<Layer> all, int layer) {
      Layer own = all.get(layer);
      if (own.source == OWN) {
        return;
      }
      String text = "layer " + layer + ", which takes keys and values from layer " + own.source + ", ";
      Checks.require(own.source < all.size(), text + "which there is not");
      Layer source = all.get(own.source);
      Checks.require(source.source == OWN, text + "which has none of its own");
      Checks.require(
          own.queryHeads == source.queryHeads
              && own.kvHeads == source.kvHeads
              && own.headDim == source.headDim
              && own.valueDim == source.valueDim
              && own.latent == source.latent,
          text + "has other heads");
      Checks.require(
          source.slidingWindow == 0 || (own.slidingWindow > 0 && own.slidingWindow <= source.slidingWindow),
          text + "sees more tokens than that keeps");
    }

    private Layer layer(int layer) {
      int queries = queryHeads.of(layer);
      LatentRow row = latent.of(layer);
      boolean shared = row != LatentRow.NONE;
      int heads = shared ? 1 : kvHeads.of(layer);
      int dim = shared ? row.rowDim : headDim.of(layer);
      Checks.require(
          queries % heads == 0,
          "layer " + layer + ": " + queries + " query heads are no multiple of " + heads + " kv heads");
      float scale = softmaxScale.of(layer);
      List<Float> sinks = sinkLogits.of(layer);
      Checks.require(
          sinks.isEmpty() || sinks.size() == queries,
          "layer " + layer + ": " + sinks.size() + " sink logits for " + queries + " query heads");
      return new Layer(
          queries,
          heads,
          dim,
          shared ? row.valueDim : dim,
          shared,
          slidingWindow.of(layer),
          Float.isNaN(scale) ? (float) (1 / Math.sqrt(dim)) : scale,
          softCap.of(layer),
          sinks,
          source.of(layer) == layer ? OWN : source.of(layer));
    }

    private static int requireHeads(String name, int heads) {
      Checks.require(heads >= 1 && heads <= MAX_HEADS, name + " is " + heads + ", not 1.." + MAX_HEADS);
      return heads;
    }

    private static int requireHeadDim(int channels) {
      Checks.require(
          channels >= 32 && channels <= 256 && channels % 16 == 0,
          "headDim is " + channels + ", not a multiple of 16 in 32..256");
      return channels;
    }

    private static long requireWindow(long tokens) {
      Checks.require(tokens >= 0, "slidingWindow is " + tokens);
      return tokens;
    }

    private static float requireCap(float cap) {
      Checks.require(cap >= 0 && cap < Float.POSITIVE_INFINITY, "softCap is " + cap);
      return cap;
    }

    private static float requireScale(float scale) {
      Checks.require(scale > 0 && scale < Float.POSITIVE_INFINITY, "softmaxScale is " + scale);
      return scale;
    }
  }

  /** A row that keys and values share. */
  private record LatentRow(int rowDim, int valueDim) {
    static final LatentRow NONE = new LatentRow(64, 64);

    LatentRow {
      Checks.require(
          rowDim >= 64 && rowDim <= 576 && rowDim % 64 == 0, "rowDim is " + rowDim + ", not a multiple of 64 in 64..576");
      Checks.require(
          valueDim >= 16 && valueDim <= rowDim && valueDim % 16 == 0,
          "valueDim is " + valueDim + ", not a multiple of 16 in 16.." + rowDim);
    }
  }

  /** One value for all layers, and others for some. */
  private static final class Setting<T> {
    private final String name;
    private final Map<Integer, T> byLayer = new TreeMap<>();
    private @Nullable T common;

    Setting(String name, @Nullable T common) {
      this.name = name;
      this.common = common;
    }

    void everywhere(T value) {
      common = value;
    }

    void at(int layer, T value) {
      Checks.require(layer >= 0, name + " for layer " + layer);
      byLayer.put(layer, value);
    }

    void requireLayersBelow(int layers) {
      for (int layer : byLayer.keySet()) {
        Checks.require(layer < layers, name + " for layer " + layer + " of " + layers + " layers");
      }
    }

    T of(int layer) {
      T value = byLayer.getOrDefault(layer, common);
      if (value == null) {
        throw new IllegalArgumentException(name + " is not set for layer " + layer);
      }
      return value;
    }
  }
}
