package dev.kvasir.calibrate;

import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Calibration;
import dev.kvasir.internal.Checks;
import dev.kvasir.method.Axis;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.stream.Collectors;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * How much the loss of a model would suffer from storing a layer's keys or values at a width: to first order, the sum
 * over all elements x of |dL/dx · (x − x')|, where x' is x as the cache would return it.
 *
 * <p>They come from samples, and only their proportions mean something: they say which layers deserve more bits. {@link
 * BitAllocator} turns them into a plan.
 *
 * @param widths the widths, ascending
 * @param keys sensitivities of the keys: by layer, then by width
 * @param values sensitivities of the values: by layer, then by width
 */
public record Sensitivities(List<Integer> widths, List<List<Double>> keys, List<List<Double>> values) {

  /** The widths of PM-KVQ: 1, 2, 4, 8 and 16. */
  public static final List<Integer> DEFAULT_WIDTHS = List.of(1, 2, 4, 8, 16);

  /**
   * Copies the lists.
   *
   * @param widths the widths, ascending
   * @param keys sensitivities of the keys: by layer, then by width
   * @param values sensitivities of the values: by layer, then by width
   * @throws IllegalArgumentException if there is no layer or no width, the lists do not fit each other, a width is not
   *     1..16 or not above the one before it, or a sensitivity is negative or not finite
   */
  public Sensitivities {
    widths = List.copyOf(widths);
    keys = copy(keys);
    values = copy(values);
    Checks.require(
        !widths.isEmpty() && !keys.isEmpty() && keys.size() == values.size(),
        widths.size() + " widths, keys of " + keys.size() + " layers, values of " + values.size());
    int before = 0;
    for (int width : widths) {
      Checks.require(width > before && width <= 16, "the widths " + widths + " do not ascend within 1..16");
      before = width;
    }
    for (List<List<Double>> side : List.of(keys, values)) {
      for (int layer = 0; layer < side.size(); layer++) {
        List<Double> row = side.get(layer);
        Checks.require(row.size() == widths.size(), "layer " + layer + ": " + row.size() + " numbers for " + widths);
        for (double value : row) {
          Checks.require(
              value >= 0 && value < Double.POSITIVE_INFINITY, "layer " + layer + ": a sensitivity of " + value);
        }
      }
    }
  }

  /**
   * Something to add samples to.
   *
   * @param geometry the model
   * @return a new accumulator
   */
  public static Accumulator accumulator(KvGeometry geometry) {
    return new Accumulator(geometry);
  }

  /**
   * The number of layers.
   *
   * @return 1 or more
   */
  public int layers() {
    return keys.size();
  }

  /**
   * The sensitivity of one side of a layer to a width.
   *
   * @param layer 0 .. layers-1
   * @param side keys or values
   * @param width one of the widths
   * @return 0 or more
   * @throws IllegalArgumentException if there is no such layer or width
   */
  public double of(int layer, Side side, int width) {
    int column = widths.indexOf(width);
    if (layer < 0 || layer >= layers() || column < 0) {
      throw new IllegalArgumentException(
          "layer " + layer + " at " + width + " bits, of " + layers() + " layers at " + widths + " bits");
    }
    return (side == Side.KEYS ? keys : values).get(layer).get(column);
  }

  /**
   * The sensitivity of a layer's keys and values together.
   *
   * @param layer 0 .. layers-1
   * @param width one of the widths
   * @return 0 or more
   * @throws IllegalArgumentException if there is no such layer or width
   */
  public double of(int layer, int width) {
    return of(layer, Side.KEYS, width) + of(layer, Side.VALUES, width);
  }

  private static List<List<Double>> copy(List<List<Double>> rows) {
    return rows.stream().map(List::copyOf).collect(Collectors.toUnmodifiableList());
  }

  /**
   * Adds up samples. The quantiser is PM-KVQ's unless changed: keys and values per token, in groups of 128 channels or
   * all channels of a head. Settings come before the first sample. Not for use by several threads.
   */
  public static final class Accumulator {

    private final KvGeometry geometry;
    private final Axis[] axes = {Axis.TOKEN, Axis.TOKEN};
    private final int[] groups = {0, 0};
    private final boolean[] added;
    private int[] widths = DEFAULT_WIDTHS.stream().mapToInt(Integer::intValue).toArray();
    private @Nullable KeyScaling scaling;
    private double @Nullable [][][] sums;

    private Accumulator(KvGeometry geometry) {
      this.geometry = geometry;
      this.added = new boolean[geometry.layers()];
    }

    /**
     * The widths to compute for.
     *
     * @param bits 1..16 each
     * @return this accumulator
     * @throws IllegalArgumentException if there is none, or one that is out of range or given twice
     */
    public Accumulator widths(int... bits) {
      requireNothingAdded();
      int[] sorted = bits.clone();
      Arrays.sort(sorted);
      List<Integer> list = IntStream.of(sorted).boxed().collect(Collectors.toList());
      if (sorted.length == 0 || sorted[0] < 1 || sorted[sorted.length - 1] > 16
          || new HashSet<>(list).size() != list.size()) {
        throw new IllegalArgumentException("the widths " + list + ", not different ones in 1..16");
      }
      widths = sorted;
      return this;
    }

    /**
     * How one side is quantised.
     *
     * @param side keys or values
     * @param axis what a group runs along
     * @param group elements of a group: 32, 64, 128 or the whole dimension; 0 for the largest up to 128
     * @return this accumulator
     */
    public Accumulator quantiser(Side side, Axis axis, int group) {
      requireNothingAdded();
      axes[side.code()] = axis;
      groups[side.code()] = group;
      return this;
    }

    /**
     * The scaling that the cache will apply to keys before it stores them.
     *
     * @param scaling of this model
     * @return this accumulator
     * @throws IllegalArgumentException if it is for another geometry
     */
    public Accumulator keyScaling(KeyScaling scaling) {
      requireNothingAdded();
      scaling.requireGeometry(geometry);
      this.scaling = scaling;
      return this;
    }

    /**
     * Adds a sample of one layer: {@code [tokens][kvHeads][headDim]} each, keys after RoPE. Derivatives count what
     * layers that take these rows do with them.
     *
     * @param layer 0 .. layers-1
     * @param keys the keys
     * @param keyGradients derivatives of the loss by the keys
     * @param values the values
     * @param valueGradients derivatives of the loss by the values
     * @param tokens how many
     * @return this accumulator
     * @throws IllegalArgumentException if a number or an array does not fit the geometry, or the layer takes keys and
     *     values from another one
     * @throws NotFiniteException if the data hold NaN, infinity or what no cache would accept
     */
    public Accumulator add(
        int layer, float[] keys, float[] keyGradients, float[] values, float[] valueGradients, int tokens) {
      int source = geometry.source(Checks.layer(layer, geometry.layers()));
      Checks.require(source == layer, "layer " + layer + " has the keys and values of layer " + source);
      double[] k = sums(Side.KEYS, layer, keys, keyGradients, tokens);
      double[] v = sums(Side.VALUES, layer, values, valueGradients, tokens);
      add(layer, k, v);
      return this;
    }

    private void add(int layer, double[] k, double[] v) {
      double[][][] all = sums;
      if (all == null) {
        all = new double[2][geometry.layers()][widths.length];
        sums = all;
      }
      for (int w = 0; w < widths.length; w++) {
        all[0][layer][w] += k[w];
        all[1][layer][w] += v[w];
      }
      added[layer] = true;
    }

    /**
     * Adds a sample of every layer with keys and values of its own from files: these and their gradients. Nothing is
     * added where it throws.
     *
     * @param tensors the files
     * @return this accumulator
     * @throws IOException if the files cannot be read or lack a tensor
     * @throws IllegalArgumentException if they are for another geometry
     * @throws NotFiniteException if the data hold NaN, infinity or what no cache would accept
     */
    public Accumulator add(CalibrationTensors tensors) throws IOException {
      tensors.requireGeometry(geometry);
      double[][][] sample = new double[geometry.layers()][][];
      for (int layer = 0; layer < sample.length; layer++) {
        if (geometry.source(layer) == layer) {
          sample[layer] =
              new double[][] {
                sums(Side.KEYS, layer, tensors.keys(layer), tensors.keyGradients(layer), tensors.tokens()),
                sums(Side.VALUES, layer, tensors.values(layer), tensors.valueGradients(layer), tensors.tokens())
              };
        }
      }
      for (int layer = 0; layer < sample.length; layer++) {
        if (geometry.source(layer) == layer) {
          add(layer, sample[layer][0], sample[layer][1]);
        }
      }
      return this;
    }

    /**
     * The sums of all samples so far; 0 for layers that take keys and values from another one.
     *
     * @return the sensitivities
     * @throws IllegalStateException if a layer with keys and values of its own has no sample
     */
    public Sensitivities result() {
      double[][][] all = sums;
      for (int layer = 0; layer < added.length; layer++) {
        if (!added[layer] && geometry.source(layer) == layer) {
          throw new IllegalStateException("layer " + layer + " has no sample");
        }
      }
      return new Sensitivities(
          IntStream.of(widths).boxed().collect(Collectors.toList()),
          lists(Objects.requireNonNull(all)[0]),
          lists(all[1]));
    }

    private double[] sums(Side side, int layer, float[] rows, float[] gradients, int tokens) {
      try {
        return Calibration.sensitivities(
            rows,
            gradients,
            tokens,
            geometry.kvHeads(layer),
            geometry.headDim(layer),
            axes[side.code()].code(),
            groups[side.code()],
            scaling == null || side == Side.VALUES ? null : scaling.lambda(layer),
            widths);
      } catch (NotFiniteException e) {
        throw Calibration.inLayer(e, side == Side.KEYS ? "keys" : "values", layer);
      }
    }

    private void requireNothingAdded() {
      if (sums != null) {
        throw new IllegalStateException("settings come before the first sample");
      }
    }

    private static List<List<Double>> lists(double[][] rows) {
      List<List<Double>> result = new ArrayList<>();
      for (double[] row : rows) {
        result.add(DoubleStream.of(row).boxed().collect(Collectors.toList()));
      }
      return result;
    }
  }
}
