package dev.kvasir.codebook;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.Side;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.codebook.KeyPart;
import dev.kvasir.internal.codebook.ValuePart;
import dev.kvasir.rope.Rope;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.SafetensorsException;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * The codebooks of a model, layer by layer, and how they are kept: in a profile, or in a plain safetensors file with
 * the same tensors.
 *
 * <pre>
 * commvq.&lt;layer&gt;.key_tables         F16 [kvHeads, stages, entries, headDim]
 * commvq.&lt;layer&gt;.key_pairs          I32 [], 0 for HALVES and 1 for NEIGHBOURS
 * commvq.&lt;layer&gt;.value_table        F16 [codes, kvHeads * headDim]
 * commvq.&lt;layer&gt;.value_thresholds   F32 [codes]; optional, one half everywhere
 * commvq.&lt;layer&gt;.encoder.scale      F32 [width]; this and the others of the encoder are optional, all or none
 * commvq.&lt;layer&gt;.encoder.norm.weight, .norm.bias        F32 [width]
 * commvq.&lt;layer&gt;.encoder.first.weight, .first.bias      F32 [hidden, width], [hidden]
 * commvq.&lt;layer&gt;.encoder.second.weight, .second.bias    F32 [2 * codes, hidden], [2 * codes]
 * </pre>
 *
 * <p>Any floating-point type is read. A layer may have codebooks for one side only, or none.
 */
public final class CommVqCodebooks {

  private final KvGeometry geometry;
  private final List<@Nullable KeyCodebook> keys;
  private final List<@Nullable ValueCodebook> values;
  private final List<@Nullable ValueEncoder> encoders;

  private CommVqCodebooks(Builder builder) {
    this.geometry = builder.geometry;
    this.keys = new ArrayList<>(builder.keys);
    this.values = new ArrayList<>(builder.values);
    this.encoders = new ArrayList<>(builder.encoders);
  }

  /**
   * A builder of codebooks for a model.
   *
   * @param geometry the model
   * @return a new builder
   */
  public static Builder builder(KvGeometry geometry) {
    return new Builder(geometry);
  }

  /**
   * The codebooks among tensors.
   *
   * @param geometry the model
   * @param tensors tensors by name; those that are not for codebooks are ignored
   * @return the codebooks; none if there are none
   * @throws IllegalArgumentException if they do not make sense or are not for the model
   */
  public static CommVqCodebooks of(KvGeometry geometry, Map<String, Tensor> tensors) {
    try {
      return CodebookTensors.read(geometry, tensors);
    } catch (IllegalStateException | ArithmeticException e) {
      throw new IllegalArgumentException(e.getMessage(), e);
    }
  }

  /**
   * The codebooks as tensors.
   *
   * @return tensors by name
   */
  public Map<String, Tensor> tensors() {
    return CodebookTensors.write(this);
  }

  /**
   * Loads a plain safetensors file.
   *
   * @param path the file; other tensors in it are ignored
   * @param geometry the model
   * @return the codebooks
   * @throws SafetensorsException if the file is damaged, or its codebooks do not make sense or are not for the model
   * @throws IOException if it cannot be read
   */
  public static CommVqCodebooks load(Path path, KvGeometry geometry) throws IOException {
    try (Safetensors file = Safetensors.open(path)) {
      Map<String, Tensor> tensors = new TreeMap<>();
      for (String name : file.entries().keySet()) {
        if (name.startsWith(CodebookTensors.PREFIX)) {
          tensors.put(name, file.read(name));
        }
      }
      if (tensors.isEmpty()) {
        throw new SafetensorsException(path, "there is no tensor " + CodebookTensors.PREFIX + "...", null);
      }
      return of(geometry, tensors);
    } catch (IllegalArgumentException e) {
      throw new SafetensorsException(path, String.valueOf(e.getMessage()), e);
    }
  }

  /**
   * Saves a plain safetensors file. A file that exists is replaced at once or not at all.
   *
   * @param path the file
   * @throws IOException if it cannot be written
   */
  public void save(Path path) throws IOException {
    Safetensors.write(path, Map.of(), tensors());
  }

  /**
   * The model.
   *
   * @return its geometry
   */
  public KvGeometry geometry() {
    return geometry;
  }

  /**
   * The codebook of a layer's keys.
   *
   * @param layer the layer
   * @return the codebook, if there is one
   * @throws IllegalArgumentException if there is no such layer
   */
  public Optional<KeyCodebook> keys(int layer) {
    return Optional.ofNullable(keys.get(Checks.layer(layer, geometry.layers())));
  }

  /**
   * The codebook of a layer's values.
   *
   * @param layer the layer
   * @return the codebook, if there is one
   * @throws IllegalArgumentException if there is no such layer
   */
  public Optional<ValueCodebook> values(int layer) {
    return Optional.ofNullable(values.get(Checks.layer(layer, geometry.layers())));
  }

  /**
   * The encoder of a layer's values.
   *
   * @param layer the layer
   * @return the encoder, if there is one
   * @throws IllegalArgumentException if there is no such layer
   */
  public Optional<ValueEncoder> encoder(int layer) {
    return Optional.ofNullable(encoders.get(Checks.layer(layer, geometry.layers())));
  }

  /**
   * What {@link KvMethod#codebook} gives to a cache.
   *
   * @param layer the layer
   * @param side keys or values
   * @param rope of the model; keys are stored before it, by a codebook or in 16 bits
   * @param refinements how often the stages of a key are revisited
   * @param flips how many bits of an encoder a value may change
   * @return empty for values without a codebook
   * @throws IllegalArgumentException if there is no such layer
   */
  public Optional<KvMethod.Codebook> forCache(int layer, Side side, Rope rope, int refinements, int flips) {
    if (side == Side.KEYS) {
      return Optional.of(
          new KeyPart(
              rope.pairs().code(),
              rope.frequencies(),
              rope.attentionFactor(),
              keys(layer).map(KeyCodebook::nativeCodebook).orElse(null),
              refinements));
    }
    return values(layer)
        .map(
            codebook ->
                new ValuePart(
                    codebook.nativeCodebook(), encoder(layer).map(ValueEncoder::nativeEncoder).orElse(null), flips));
  }

  /**
   * What the codebooks of one side weigh as they are stored: float16 tables, float32 thresholds. Encoders, which attention
   * does not read, are not counted.
   *
   * @param side the side
   * @return bytes of all layers
   */
  public long bytes(Side side) {
    long bytes = 0;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      KeyCodebook tables = side == Side.KEYS ? keys.get(layer) : null;
      ValueCodebook rows = side == Side.VALUES ? values.get(layer) : null;
      if (tables != null) {
        long vectors = (long) tables.kvHeads() * tables.stages() * tables.entries();
        bytes += vectors * tables.headDim() * Short.BYTES;
      }
      if (rows != null) {
        bytes += (long) rows.codes() * (rows.width() * Short.BYTES + Float.BYTES);
      }
    }
    return bytes;
  }

  @Override
  public boolean equals(@Nullable Object other) {
    return other instanceof CommVqCodebooks that
        && keys.equals(that.keys)
        && values.equals(that.values)
        && encoders.equals(that.encoders);
  }

  @Override
  public int hashCode() {
    return keys.hashCode() ^ values.hashCode();
  }

  @Override
  public String toString() {
    return "CommVqCodebooks[" + geometry + "]";
  }

  /** Which codebooks. Not for use by several threads. */
  public static final class Builder {

    private final KvGeometry geometry;
    private final List<@Nullable KeyCodebook> keys;
    private final List<@Nullable ValueCodebook> values;
    private final List<@Nullable ValueEncoder> encoders;

    private Builder(KvGeometry geometry) {
      this.geometry = geometry;
      this.keys = new ArrayList<>(Collections.nCopies(geometry.layers(), null));
      this.values = new ArrayList<>(Collections.nCopies(geometry.layers(), null));
      this.encoders = new ArrayList<>(Collections.nCopies(geometry.layers(), null));
    }

    /**
     * The codebook of a layer's keys.
     *
     * @param layer the layer
     * @param codebook the codebook
     * @return this builder
     * @throws IllegalArgumentException if it is for other heads than the layer's
     * @throws IllegalArgumentException if there is no such layer
     */
    public Builder keys(int layer, KeyCodebook codebook) {
      Checks.require(
          codebook.kvHeads() == geometry.kvHeads(layer) && codebook.headDim() == geometry.headDim(layer),
          codebook + mismatch(layer));
      keys.set(layer, codebook);
      return this;
    }

    /**
     * The codebook of a layer's values.
     *
     * @param layer the layer
     * @param codebook the codebook
     * @return this builder
     * @throws IllegalArgumentException if it is for other heads than the layer's
     * @throws IllegalArgumentException if there is no such layer
     */
    public Builder values(int layer, ValueCodebook codebook) {
      Checks.require(codebook.width() == geometry.rowSize(layer), codebook + mismatch(layer));
      values.set(layer, codebook);
      encoders.set(layer, null);
      return this;
    }

    /**
     * The codebook of a layer's values with its encoder.
     *
     * @param layer the layer
     * @param trained the codebook and its encoder
     * @return this builder
     * @throws IllegalArgumentException if they are for other heads than the layer's, or not for each other
     * @throws IllegalArgumentException if there is no such layer
     */
    public Builder values(int layer, TrainedValues trained) {
      ValueEncoder encoder = trained.encoder();
      Checks.require(
          encoder.width() == trained.codebook().width() && encoder.codes() == trained.codebook().codes(),
          encoder + " for " + trained.codebook());
      values(layer, trained.codebook());
      encoders.set(layer, encoder);
      return this;
    }

    /**
     * The codebooks.
     *
     * @return new codebooks
     */
    public CommVqCodebooks build() {
      return new CommVqCodebooks(this);
    }

    private String mismatch(int layer) {
      return " for layer " + layer + " of " + geometry.kvHeads(layer) + " kv heads with " + geometry.headDim(layer)
          + " channels";
    }
  }
}
