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
 * <p>A side of a layer without a basis is stored channel by channel as it comes: for engines whose weights have the basis
 * in them already, or for rows whose channels are uncorrelated as they are.
 *
 * @param bases of all layers
 * @param keyBits code bits of a key's channel, on average, by layer; above 0 and at most 8
 * @param valueBits of a value's, likewise
 * @param window see {@link KvMethod#window}
 * @param sinks see {@link KvMethod#sinks}
 */
public record Spectral(SpectralBases bases, List<Double> keyBits, List<Double> valueBits, int window, int sinks)
    implements KvMethod {

  /**
   * Checks the numbers.
   *
   * @param bases of all layers
   * @param keyBits code bits of keys by layer
   * @param valueBits code bits of values by layer
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
    Checks.requireNotNegative("window", window);
    Checks.requireNotNegative("sinks", sinks);
  }

  private static void requireBits(String what, int layer, double bits) {
    Checks.require(bits > 0 && bits <= 8, "layer " + layer + " has " + bits + " bits for " + what + ", not 0..8");
  }

  /**
   * The same width in all layers, 4 sinks and the smallest window.
   *
   * @param bases of all layers
   * @param bits code bits of a channel, on average
   * @return the method
   */
  public static Spectral of(SpectralBases bases, double bits) {
    List<Double> all = Collections.nCopies(bases.geometry().layers(), bits);
    return new Spectral(bases, all, all, 0, Sinks.DEFAULT);
  }

  /**
   * This method with widths of their own for all layers.
   *
   * @param keys code bits of keys by layer
   * @param values code bits of values by layer
   * @return a new method
   */
  public Spectral bits(List<Double> keys, List<Double> values) {
    return new Spectral(bases, keys, values, window, sinks);
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
    return String.format(Locale.ROOT, "spectral-k%.2fv%.2f", mean(keyBits), mean(valueBits));
  }

  private static double mean(List<Double> bits) {
    return bits.stream().mapToDouble(Double::doubleValue).average().orElse(0);
  }

  @Override
  public CodecChoice keys(int layer) {
    return choice(keyBits.get(layer));
  }

  @Override
  public CodecChoice values(int layer) {
    return choice(valueBits.get(layer));
  }

  private static CodecChoice choice(double bits) {
    int nominal = bits > 4 ? 8 : Math.max(1, (int) Math.round(bits));
    return CodecChoice.of("spectral", nominal).with("code_bits", bits);
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
