package dev.kvasir.codebook;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.Side;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.codebook.BasisPart;
import dev.kvasir.tensor.Tensor;
import java.util.Arrays;
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
  private static final String VARIANCES = ".variances";

  private final KvGeometry geometry;
  private final Map<String, float[]> vectors;
  private final Map<String, float[]> variances; // [kvHeads][headDim], of those that are known

  private SpectralBases(KvGeometry geometry, Map<String, float[]> vectors, Map<String, float[]> variances) {
    this.geometry = geometry;
    this.vectors = vectors;
    this.variances = variances;
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
          Tensor known = tensors.get(name(layer, side) + VARIANCES);
          if (known != null) {
            builder.variances(layer, side, known.toFloats());
          }
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
          float[] known = variances.get(name(layer, side));
          if (known != null) {
            tensors.put(name(layer, side) + VARIANCES, Tensor.ofFloats(known, geometry.kvHeads(layer), d));
          }
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
   * The vectors of a side of a layer.
   *
   * @param layer the layer
   * @param side keys or values
   * @return {@code [kvHeads][headDim][headDim]}, one vector after the other; empty for a side without a basis
   */
  public Optional<float[]> basis(int layer, Side side) {
    return Optional.ofNullable(vectors.get(name(layer, side))).map(float[]::clone);
  }

  /**
   * These without those of one side: for engines whose weights have them.
   *
   * @param side the side
   * @return new bases; variances stay
   */
  public SpectralBases without(Side side) {
    Map<String, float[]> others = new HashMap<>(vectors);
    for (int layer = 0; layer < geometry.layers(); layer++) {
      others.remove(name(layer, side));
    }
    return new SpectralBases(geometry, others, new HashMap<>(variances));
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
   * How large errors of a side's pages are at so many code bits, compared with other numbers of bits. They fall fourfold
   * with each bit where all channels have some, and faster where bits are few and go to the channels that spread most.
   *
   * @param layer the layer
   * @param side keys or values
   * @param bits code bits on average, 0 or more
   * @return the squared error, in a unit of the side's own; fourfold a bit where variances are not known
   */
  public double distortion(int layer, Side side, double bits) {
    float[] known = variances.get(name(layer, side));
    if (known == null) {
      return Math.pow(4, -bits);
    }
    int d = geometry.headDim(layer);
    double sum = 0;
    for (int head = 0; head < geometry.kvHeads(layer); head++) {
      sum += filled(Arrays.copyOfRange(known, head * d, (head + 1) * d), bits);
    }
    return sum;
  }

  /** Where each channel has one bit for each doubling of its spread above a level: the error of all channels. */
  private static double filled(float[] variances, double bits) {
    double[] octaves = new double[variances.length];
    double high = Double.NEGATIVE_INFINITY;
    for (int c = 0; c < octaves.length; c++) {
      octaves[c] = 0.5 * Math.log(Math.max(1e-20, variances[c])) / Math.log(2);
      high = Math.max(high, octaves[c]);
    }
    double low = high - 64 - bits * octaves.length;
    for (int i = 0; i < 50; i++) {
      double level = (low + high) / 2;
      double spent = 0;
      for (double octave : octaves) {
        spent += Math.max(0, octave - level);
      }
      if (spent > bits * octaves.length) {
        low = level;
      } else {
        high = level;
      }
    }
    double error = 0;
    for (double octave : octaves) {
      error += Math.pow(4, Math.min(octave, high));
    }
    return error;
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
    private final Map<String, float[]> variances = new HashMap<>();

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
     * How far rows spread along the vectors of a basis, within pages.
     *
     * @param layer 0 .. layers-1
     * @param side keys or values
     * @param known variances, {@code [kvHeads][headDim]}; copied
     * @return this builder
     * @throws IllegalArgumentException if they have another size
     */
    public Builder variances(int layer, Side side, float[] known) {
      Checks.layer(layer, geometry.layers());
      int size = geometry.rowSize(layer);
      Checks.require(known.length == size, "layer " + layer + " has " + size + " variances, not " + known.length);
      variances.put(name(layer, side), known.clone());
      return this;
    }

    /**
     * The bases so far.
     *
     * @return them
     */
    public SpectralBases build() {
      return new SpectralBases(geometry, new HashMap<>(vectors), new HashMap<>(variances));
    }
  }
}
