package dev.kvasir;

import dev.kvasir.internal.Checks;
import java.util.Map;
import java.util.TreeMap;

/**
 * The codec of one side of one layer. {@link Kvasir#codecs()} lists codecs, widths and options; a choice that does not
 * fit is refused by {@link KvCache.Builder#build}.
 *
 * @param codec the codec's name
 * @param bits bits per element, parameters not counted
 * @param options codec options by name; those not given keep the codec's default
 */
public record CodecChoice(String codec, int bits, Map<String, Double> options) {

  /**
   * Copies the options.
   *
   * @param codec the codec's name
   * @param bits bits per element, parameters not counted
   * @param options codec options by name
   * @throws IllegalArgumentException if the name is empty or the width not positive
   */
  public CodecChoice {
    Checks.require(!codec.isEmpty(), "the codec has no name");
    Checks.require(bits > 0, "codec " + codec + ": " + bits + " bits");
    options = Map.copyOf(options);
  }

  /**
   * A choice without options.
   *
   * @param codec the codec's name
   * @param bits bits per element
   * @return the choice
   */
  public static CodecChoice of(String codec, int bits) {
    return new CodecChoice(codec, bits, Map.of());
  }

  /**
   * This choice with one option set.
   *
   * @param option the option's name
   * @param value its value
   * @return a new choice
   */
  public CodecChoice with(String option, double value) {
    Map<String, Double> all = new TreeMap<>(options);
    all.put(option, value);
    return new CodecChoice(codec, bits, all);
  }
}
