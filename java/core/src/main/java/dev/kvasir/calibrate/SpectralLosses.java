package dev.kvasir.calibrate;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.internal.Checks;
import dev.kvasir.method.Spectral;
import dev.kvasir.tensor.Tensor;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.stream.DoubleStream;
import java.util.stream.Stream;

/**
 * How many bits each layer's keys and values should have in {@link Spectral}: what a model loses where one of them alone
 * is coded, and how much of the differences to believe.
 *
 * <p>Losses go with the squares of errors, which fall about fourfold with each bit ({@link SpectralBases#distortion}), so
 * a side that loses four times as much should have one bit more. Taken at their word the losses of single sides starve some of them, and losses of many starved sides add up to more than their sum; a
 * temper below 1 takes the differences for smaller than they look: 0 gives all sides alike. Which one is best shows a run
 * of the model with whole plans.
 *
 * @param geometry the model
 * @param keys loss by layer, such as the divergence from exact predictions, where its keys are coded at {@value
 *     #MEASURED_BITS} bits and all else is exact
 * @param values the same for values
 * @param temper power that losses are taken to, 0..1
 */
public record SpectralLosses(KvGeometry geometry, List<Double> keys, List<Double> values, double temper) {

  /** Code bits that losses are measured at. */
  public static final double MEASURED_BITS = 2;

  private static final String LOSSES = "spectral.losses";
  private static final String TEMPER = "spectral.temper";

  private static final int TILE = 8; // channels that share a width
  private static final double LEAST_BITS = 0.25;
  private static final double MOST_BITS = 7;
  private static final Duration TIME = Duration.ofSeconds(2);

  /**
   * Checks the numbers.
   *
   * @param geometry the model
   * @param keys losses of keys by layer
   * @param values losses of values by layer
   * @param temper power that losses are taken to
   * @throws IllegalArgumentException if there are not as many as layers, or one is not positive and finite, or the temper
   *     is not within 0..1
   */
  public SpectralLosses {
    Objects.requireNonNull(geometry, "geometry");
    keys = List.copyOf(keys);
    values = List.copyOf(values);
    Checks.require(
        keys.size() == geometry.layers() && values.size() == geometry.layers(),
        "losses of " + keys.size() + " and " + values.size() + " layers for a model of " + geometry.layers());
    Checks.require(
        Stream.concat(keys.stream(), values.stream()).allMatch(loss -> loss > 0 && loss < Double.POSITIVE_INFINITY),
        "losses must be positive: " + keys + ", " + values);
    Checks.require(temper >= 0 && temper <= 1, "temper", temper, "0..1");
  }

  /**
   * Losses of which nothing is known: all sides alike.
   *
   * @param geometry the model
   * @return the same for all
   */
  public static SpectralLosses equal(KvGeometry geometry) {
    List<Double> ones = Collections.nCopies(geometry.layers(), 1.0);
    return new SpectralLosses(geometry, ones, ones, 0);
  }

  /**
   * These with another temper.
   *
   * @param power 0..1
   * @return new losses
   */
  public SpectralLosses temper(double power) {
    return new SpectralLosses(geometry, keys, values, power);
  }

  /**
   * The plan of least loss.
   *
   * @param bases of the model
   * @param bits code bits of an element, on average over all layers; norms, steps and widths come on top, 0.22 bits for
   *     heads of 128 channels
   * @return the method: no more than so many bits on average
   * @throws InfeasibleBudgetException for fewer bits than a quarter on average
   */
  public Spectral plan(SpectralBases bases, double bits) {
    Checks.require(bits > 0 && bits <= 8, "bits", bits, "above 0 and up to 8");
    List<KnapsackGroup> groups = new ArrayList<>();
    double budget = 0;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      for (Side side : own(layer)) {
        groups.add(group(bases, layer, side));
        budget += bits * geometry.rowSize(layer) * KvCache.PAGE_TOKENS / 8;
      }
    }
    List<KnapsackGroup.Option> chosen = new Knapsack(groups, (long) budget).solve(TIME).options();
    List<List<Double>> found = List.of(new ArrayList<>(), new ArrayList<>());
    int next = 0;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      for (Side side : Side.values()) {
        boolean own = own(layer).contains(side);
        found.get(side.code()).add(own ? bits(chosen.get(next++).label(), layer) : bits);
      }
    }
    return Spectral.of(bases, bits).bits(found.get(0), found.get(1));
  }

  /** What of a layer is stored: nothing where it takes its rows from another one. */
  private List<Side> own(int layer) {
    return geometry.source(layer) == layer ? List.of(Side.values()) : List.of();
  }

  /** Code bits in steps of about a quarter, labelled with the widths of a head's tiles, added up. */
  private KnapsackGroup group(SpectralBases bases, int layer, Side side) {
    KnapsackGroup group = new KnapsackGroup();
    double loss = (side == Side.KEYS ? keys : values).get(layer) / bases.distortion(layer, side, MEASURED_BITS);
    int step = Math.max(1, geometry.headDim(layer) / (4 * TILE));
    int least = (int) Math.ceil(LEAST_BITS * geometry.headDim(layer) / TILE);
    for (int tiles = least; bits(tiles, layer) <= MOST_BITS; tiles += step) {
      long bytes = (long) geometry.kvHeads(layer) * tiles * TILE * KvCache.PAGE_TOKENS / 8;
      // Fourfold a bit for all sides, times what makes this one different.
      double alike = Math.pow(4, MEASURED_BITS - bits(tiles, layer));
      double own = loss * bases.distortion(layer, side, bits(tiles, layer));
      group.add(tiles, bytes, alike * Math.pow(own / alike, temper));
    }
    return group;
  }

  private double bits(int tiles, int layer) {
    return (double) tiles * TILE / geometry.headDim(layer);
  }

  /**
   * Losses as a profile holds them.
   *
   * @return tensors by name
   */
  public Map<String, Tensor> tensors() {
    double[] all = DoubleStream.concat(numbers(keys), numbers(values)).toArray();
    return Map.of(LOSSES, Tensor.ofDoubles(all, 2, geometry.layers()), TEMPER, Tensor.ofDoubles(new double[] {temper}, 1));
  }

  private static DoubleStream numbers(List<Double> list) {
    return list.stream().mapToDouble(Double::doubleValue);
  }

  /**
   * The losses among a profile's tensors.
   *
   * @param geometry the model
   * @param tensors by name; others are ignored
   * @return empty where there are none
   * @throws IllegalArgumentException if they are not of the geometry
   */
  public static Optional<SpectralLosses> of(KvGeometry geometry, Map<String, Tensor> tensors) {
    Tensor losses = tensors.get(LOSSES);
    Tensor temper = tensors.get(TEMPER);
    if (losses == null || temper == null) {
      return Optional.empty();
    }
    List<Double> all = DoubleStream.of(losses.toDoubles()).boxed().toList();
    Checks.require(
        all.size() == 2 * geometry.layers() && temper.elements() == 1,
        all.size() + " losses for a model of " + geometry.layers() + " layers");
    int half = geometry.layers();
    return Optional.of(
        new SpectralLosses(geometry, all.subList(0, half), all.subList(half, 2 * half), temper.toDoubles()[0]));
  }
}
