package dev.kvasir.conformance;

import dev.kvasir.CodecChoice;
import dev.kvasir.Side;
import java.util.Map;
import java.util.TreeMap;

/** What describes one kv head's part of a page: a side, a head dim, a width, a setting of the codec's options. */
record PageShape(Side side, int headDim, int bits, Map<String, Double> options) {

  /** Tokens of a page. */
  static final int TOKENS = 128;

  static PageShape of(Side side, int headDim, CodecChoice choice) {
    return new PageShape(side, headDim, choice.bits(), choice.options());
  }

  int option(String name, int otherwise) {
    return options.containsKey(name) ? options.get(name).intValue() : otherwise;
  }

  @Override
  public String toString() {
    return side + " d=" + headDim + " " + bits + " bits " + new TreeMap<>(options);
  }
}
