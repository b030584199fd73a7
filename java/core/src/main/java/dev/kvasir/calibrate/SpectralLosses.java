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
 * a side that loses four times as much should have one bit more. Taken at their word the losses of single sides starve
 * some of them, and losses of many starved sides add up to more than their sum; a temper below 1 takes the differences
 * for smaller than they look, and 0 gives all sides alike; one above 1 takes them for greater. Which one is best shows a
 * run of the model with whole plans, and plans of few bits want another one than those of many.
 *
 * @param geometry the model
 * @param keys loss by layer, such as the divergence from exact predictions, where its keys are coded at {@value
 *     #MEASURED_BITS} bits and all else is exact
 * @param values the same for values
 * @param tempers of plans of some bits, by ascending bits; in between they are interpolated
 */
public record SpectralLosses(KvGeometry geometry, List<Double> keys, List<Double> values, List<Temper> tempers) {

  /**
   * How much of the differences plans of some bits believe.
   *
   * @param bits code bits of an element, on average
   * @param power that losses are taken to, 0..2
   */
  public record Temper(double bits, double power) {

    /**
     * Checks the power.
     *
     * @param bits code bits of an element
     * @param power that losses are taken to
     * @throws IllegalArgumentException if the power is not within 0..2, or the bits are not above 0 and up to 8
     */
    public Temper {
      Checks.require(bits > 0 && bits <= 8, "bits", bits, "above 0 and up to 8");
      Checks.require(power >= 0 && power <= 2, "temper", power, "0..2");
    }
  }

  /** Code bits that losses are measured at. */
  public static final double MEASURED_BITS = 2;

  private static final String LOSSES = "spectral.losses";
  private static final String TEMPERS = "spectral.temper";

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
   * @param tempers of plans of some bits
   * @throws IllegalArgumentException if there are not as many as layers, or one is not positive and finite, or there is no
   *     temper, or they are not by ascending bits
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
    tempers = List.copyOf(tempers);
    Checks.require(!tempers.isEmpty(), "there must be a temper");
    for (int i = 1; i < tempers.size(); i++) {
      Checks.require(tempers.get(i - 1).bits() < tempers.get(i).bits(), "tempers must be by ascending bits: " + tempers);
    }
  }

  /**
   * Losses of which nothing is known: all sides alike.
   *
   * @param geometry the model
   * @return the same for all
   */
  public static SpectralLosses equal(KvGeometry geometry) {
    List<Double> ones = Collections.nCopies(geometry.layers(), 1.0);
    return new SpectralLosses(geometry, ones, ones, everywhere(0));
  }

  /**
   * Losses taken at their word.
   *
   * @param geometry the model
   * @param keys losses of keys by layer
   * @param values losses of values by layer
   * @return with a temper of 1
   * @throws IllegalArgumentException as the constructor does
   */
  public static SpectralLosses of(KvGeometry geometry, List<Double> keys, List<Double> values) {
    return new SpectralLosses(geometry, keys, values, everywhere(1));
  }

  /**
   * These with another temper, whatever the bits.
   *
   * @param power 0..2
   * @return new losses
   */
  public SpectralLosses temper(double power) {
    return tempers(everywhere(power));
  }

  /**
   * These with other tempers.
   *
   * @param tempers by ascending bits
   * @return new losses
   */
  public SpectralLosses tempers(List<Temper> tempers) {
    return new SpectralLosses(geometry, keys, values, tempers);
  }

  private static List<Temper> everywhere(double power) {
    return List.of(new Temper(MEASURED_BITS, power));
  }

  /**
   * The temper of plans of some bits.
   *
   * @param bits code bits of an element, on average
   * @return between those of the nearest bits on both sides, or that of the nearest
   */
  public double power(double bits) {
    Temper below = tempers.get(0);
    for (Temper above : tempers) {
      if (bits <= above.bits()) {
        double share = above.equals(below) ? 0 : (bits - below.bits()) / (above.bits() - below.bits());
        return below.power() + share * (above.power() - below.power());
      }
      below = above;
    }
    return below.power();
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
    double power = power(bits);
    List<KnapsackGroup> groups = new ArrayList<>();
    double budget = 0;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      for (Side side : own(layer)) {
        groups.add(group(bases, layer, side, power));
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
  private KnapsackGroup group(SpectralBases bases, int layer, Side side, double power) {
    KnapsackGroup group = new KnapsackGroup();
    double loss = (side == Side.KEYS ? keys : values).get(layer) / bases.distortion(layer, side, MEASURED_BITS);
    int step = Math.max(1, geometry.headDim(layer) / (4 * TILE));
    int least = (int) Math.ceil(LEAST_BITS * geometry.headDim(layer) / TILE);
    for (int tiles = least; bits(tiles, layer) <= MOST_BITS; tiles += step) {
      long bytes = (long) geometry.kvHeads(layer) * tiles * TILE * KvCache.PAGE_TOKENS / 8;
      // Fourfold a bit for all sides, times what makes this one different.
      double alike = Math.pow(4, MEASURED_BITS - bits(tiles, layer));
      double own = loss * bases.distortion(layer, side, bits(tiles, layer));
      group.add(tiles, bytes, alike * Math.pow(own / alike, power));
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
    double[] pairs = tempers.stream().flatMapToDouble(temper -> DoubleStream.of(temper.bits(), temper.power())).toArray();
    return Map.of(LOSSES, Tensor.ofDoubles(all, 2, geometry.layers()), TEMPERS, Tensor.ofDoubles(pairs, tempers.size(), 2));
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
    Tensor tempers = tensors.get(TEMPERS);
    if (losses == null || tempers == null) {
      return Optional.empty();
    }
    List<Double> all = DoubleStream.of(losses.toDoubles()).boxed().toList();
    Checks.require(
        all.size() == 2 * geometry.layers(), all.size() + " losses for a model of " + geometry.layers() + " layers");
    int half = geometry.layers();
    return Optional.of(
        new SpectralLosses(geometry, all.subList(0, half), all.subList(half, 2 * half), tempers(tempers.toDoubles())));
  }

  /** Pairs of bits and power; in older profiles one power. */
  private static List<Temper> tempers(double[] numbers) {
    if (numbers.length == 1) {
      return everywhere(numbers[0]);
    }
    Checks.require(numbers.length % 2 == 0, numbers.length + " numbers of tempers, which are pairs");
    List<Temper> read = new ArrayList<>();
    for (int i = 0; i < numbers.length; i += 2) {
      read.add(new Temper(numbers[i], numbers[i + 1]));
    }
    return read;
  }
}
