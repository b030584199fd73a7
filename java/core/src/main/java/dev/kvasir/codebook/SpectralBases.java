package dev.kvasir.codebook;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.Side;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.codebook.BasisPart;
import dev.kvasir.tensor.Tensor;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.TreeMap;

/**
 * The bases of a model for {@link dev.kvasir.method.Spectral}: for a layer, a side and a kv head as many vectors as it has
 * channels, {@code [kvHeads][headDim][headDim]}, one vector after the other. Rows are stored as sums of them; {@code
 * SpectralCalibrator} finds those in which errors cost alike.
 */
public final class SpectralBases {

  private static final String PREFIX = "spectral.";

  private final KvGeometry geometry;
  private final Map<String, float[]> vectors;

  private SpectralBases(KvGeometry geometry, Map<String, float[]> vectors) {
    this.geometry = geometry;
    this.vectors = vectors;
  }

  /**
   * A builder without any basis: sides that get none are stored as they are.
   *
   * @param geometry the model
   * @return a new builder
   */
  public static Builder builder(KvGeometry geometry) {
    return new Builder(geometry);
  }

  /**
   * The bases among a profile's tensors.
   *
   * @param geometry the model
   * @param tensors by name; others are ignored
   * @return the bases, none where there are none
   * @throws IllegalArgumentException if one is not of the geometry
   */
  public static SpectralBases of(KvGeometry geometry, Map<String, Tensor> tensors) {
    Builder builder = builder(geometry);
    for (int layer = 0; layer < geometry.layers(); layer++) {
      for (Side side : Side.values()) {
        Tensor tensor = tensors.get(name(layer, side));
        if (tensor != null) {
          builder.basis(layer, side, tensor.toFloats());
        }
      }
    }
    return builder.build();
  }

  /**
   * The bases as a profile holds them.
   *
   * @return tensors by name
   */
  public Map<String, Tensor> tensors() {
    Map<String, Tensor> tensors = new TreeMap<>();
    for (int layer = 0; layer < geometry.layers(); layer++) {
      for (Side side : Side.values()) {
        float[] basis = vectors.get(name(layer, side));
        if (basis != null) {
          int d = geometry.headDim(layer);
          tensors.put(name(layer, side), Tensor.ofFloats(basis, geometry.kvHeads(layer), d, d));
        }
      }
    }
    return tensors;
  }

  private static String name(int layer, Side side) {
    return PREFIX + layer + "." + (side == Side.KEYS ? "keys" : "values");
  }

  /**
   * Whether there is none.
   *
   * @return true where no side of a layer has a basis
   */
  public boolean isEmpty() {
    return vectors.isEmpty();
  }

  /**
   * The model's shape.
   *
   * @return the geometry
   */
  public KvGeometry geometry() {
    return geometry;
  }

  /**
   * What {@link KvMethod#codebook} gives to a cache.
   *
   * @param layer the layer
   * @param side keys or values
   * @return empty for a side without a basis
   */
  public Optional<KvMethod.Codebook> forCache(int layer, Side side) {
    return Optional.ofNullable(vectors.get(name(layer, side))).map(basis -> new BasisPart(side.code(), basis));
  }

  /**
   * What the bases of one side weigh in float16.
   *
   * @param side the side
   * @return bytes of all layers
   */
  public long bytes(Side side) {
    long bytes = 0;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      float[] basis = vectors.get(name(layer, side));
      bytes += basis == null ? 0 : 2L * basis.length;
    }
    return bytes;
  }

  /** Collects bases. */
  public static final class Builder {

    private final KvGeometry geometry;
    private final Map<String, float[]> vectors = new HashMap<>();

    private Builder(KvGeometry geometry) {
      this.geometry = Objects.requireNonNull(geometry, "geometry");
    }

    /**
     * The basis of a side of a layer.
     *
     * @param layer 0 .. layers-1
     * @param side keys, as they are after RoPE, or values
     * @param basis {@code [kvHeads][headDim][headDim]}; copied
     * @return this builder
     * @throws IllegalArgumentException if it has another size
     */
    public Builder basis(int layer, Side side, float[] basis) {
      Checks.require(layer >= 0 && layer < geometry.layers(), "layer", layer, "0.." + (geometry.layers() - 1));
      long size = (long) geometry.kvHeads(layer) * geometry.headDim(layer) * geometry.headDim(layer);
      Checks.require(basis.length == size, "a basis of layer " + layer + " has " + size + " elements, not " + basis.length);
      vectors.put(name(layer, side), basis.clone());
      return this;
    }

    /**
     * The bases so far.
     *
     * @return them
     */
    public SpectralBases build() {
      return new SpectralBases(geometry, new HashMap<>(vectors));
    }
  }
}
