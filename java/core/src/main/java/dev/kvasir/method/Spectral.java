package dev.kvasir.method;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvMethod;
import dev.kvasir.Side;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Records;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.Optional;
import java.util.stream.Stream;

/**
 * Spectral: pages in the basis where errors cost least.
 *
 * <p>Each kv head has, for keys and for values, a basis of its own: its channels are uncorrelated within a page, and an
 * error in one costs attention as much as in any other. A page then gives each channel 0, 1, 2, 4 or 8 bits, one more
 * for each doubling of its spread, until the page's bits are spent. {@code SpectralCalibrator} finds the bases from a few
 * thousand tokens of any text, {@code SpectralLosses} which layers should have more bits than others.
 *
 * <pre>{@code
 * KvMethod method = Profile.load(path, geometry).spectral(2.0);
 * KvCache cache = KvCache.builder(geometry).method(method).build();
 * }</pre>
 *
 * <p>With a {@link #floor}, pages give up bits in place where a cache's budget runs out: an eighth of a bit at a time, the
 * oldest first, all layers and sides as much, so that what they were given by their losses stays in proportion.
 *
 * <p>A side of a layer without a basis is stored channel by channel as it comes: for engines whose weights have the basis
 * in them already, or for rows whose channels are uncorrelated as they are.
 *
 * @param bases of all layers
 * @param keyBits code bits of a key's channel, on average, by layer; above 0 and at most 8
 * @param valueBits of a value's, likewise
 * @param floor code bits, on average, that pages keep under any budget; 0: they keep all that they were sealed with
 * @param window see {@link KvMethod#window}
 * @param sinks see {@link KvMethod#sinks}
 */
public record Spectral(
    SpectralBases bases, List<Double> keyBits, List<Double> valueBits, double floor, int window, int sinks)
    implements KvMethod {

  /** Tokens kept exact: a block of 16-bit rows, which four would take as well. */
  private static final int SINKS = 16;

  /** The least that is kept of a side that began with fewer bits than most. */
  private static final double LEAST_BITS = 0.25;

  /**
   * Checks the numbers.
   *
   * @param bases of all layers
   * @param keyBits code bits of keys by layer
   * @param valueBits code bits of values by layer
   * @param floor least bits on average, or 0
   * @param window see {@link KvMethod#window}
   * @param sinks see {@link KvMethod#sinks}
   * @throws IllegalArgumentException for a number out of range, or where there are not as many as layers
   */
  public Spectral {
    Objects.requireNonNull(bases, "bases");
    keyBits = List.copyOf(keyBits);
    valueBits = List.copyOf(valueBits);
    int layers = bases.geometry().layers();
    Checks.require(keyBits.size() == layers, keyBits.size() + " widths of keys for " + layers + " layers");
    Checks.require(valueBits.size() == layers, valueBits.size() + " widths of values for " + layers + " layers");
    for (int layer = 0; layer < layers; layer++) {
      requireBits("keys", layer, keyBits.get(layer));
      requireBits("values", layer, valueBits.get(layer));
    }
    Checks.require(
        floor == 0 || floor > 0 && floor <= mean(keyBits, valueBits), "floor", floor, "0.." + mean(keyBits, valueBits));
    Checks.requireNotNegative("window", window);
    Checks.requireNotNegative("sinks", sinks);
  }

  private static void requireBits(String what, int layer, double bits) {
    Checks.require(bits > 0 && bits <= 8, "layer " + layer + " has " + bits + " bits for " + what + ", not 0..8");
  }

  /**
   * The same width in all layers, the smallest window, and sixteen sinks: the first tokens of a text are those that
   * others attend to most.
   *
   * @param bases of all layers
   * @param bits code bits of a channel, on average
   * @return the method
   */
  public static Spectral of(SpectralBases bases, double bits) {
    List<Double> all = Collections.nCopies(bases.geometry().layers(), bits);
    return new Spectral(bases, all, all, 0, 0, SINKS);
  }

  /**
   * This method with widths of their own for all layers.
   *
   * @param keys code bits of keys by layer
   * @param values code bits of values by layer
   * @return a new method
   */
  public Spectral bits(List<Double> keys, List<Double> values) {
    return new Spectral(bases, keys, values, floor, window, sinks);
  }

  /**
   * This method with pages that give up bits where a budget runs out.
   *
   * @param bits code bits that they keep, on average over all layers and sides; 0: they give up none
   * @return a new method
   */
  public Spectral floor(double bits) {
    return Records.with(this, "floor", bits);
  }

  /**
   * This method with another window.
   *
   * @param tokens see {@link KvMethod#window}
   * @return a new method
   */
  public Spectral window(int tokens) {
    return Records.with(this, "window", tokens);
  }

  /**
   * This method with another number of sinks.
   *
   * @param tokens see {@link KvMethod#sinks}
   * @return a new method
   */
  public Spectral sinks(int tokens) {
    return Records.with(this, "sinks", tokens);
  }

  @Override
  public String name() {
    String name = String.format(Locale.ROOT, "spectral-k%.2fv%.2f", mean(keyBits), mean(valueBits));
    return floor == 0 ? name : name + String.format(Locale.ROOT, "-to%.2f", floor);
  }

  @SafeVarargs
  private static double mean(List<Double>... bits) {
    return Stream.of(bits).flatMap(List::stream).mapToDouble(Double::doubleValue).average().orElse(0);
  }

  @Override
  public CodecChoice keys(int layer) {
    return choice(keyBits.get(Checks.layer(layer, keyBits.size())));
  }

  @Override
  public CodecChoice values(int layer) {
    return choice(valueBits.get(Checks.layer(layer, valueBits.size())));
  }

  private CodecChoice choice(double bits) {
    int nominal = bits > 4 ? 8 : Math.max(1, (int) Math.round(bits));
    CodecChoice choice = CodecChoice.of("spectral", nominal).with("code_bits", bits);
    if (floor == 0) {
      return choice;
    }
    double kept = bits - (mean(keyBits, valueBits) - floor);
    return choice.with("floor_bits", Math.min(bits, Math.max(LEAST_BITS, kept)));
  }

  @Override
  public Optional<Codebook> codebook(int layer, Side side) {
    return bases.forCache(layer, side);
  }

  @Override
  public long codebookBytes(Side side) {
    return bases.bytes(side);
  }
}
