package dev.kvasir.lab.inspect;

import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.calibrate.AttentionSample;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import dev.kvasir.method.CommVq;
import dev.kvasir.method.HalfPrecision;
import java.util.ArrayList;
import java.util.List;

/** Keys, values and queries of every layer of a model that has read a text with a 16-bit cache. */
public final class Recording {

  private final Model model;
  private final int tokens;
  private final List<float[]> keys = new ArrayList<>();
  private final List<float[]> values = new ArrayList<>();
  private final List<float[]> queries = new ArrayList<>();

  private Recording(Model model, int tokens) {
    this.model = model;
    this.tokens = tokens;
  }

  /**
   * Reads a text.
   *
   * @param tokens one or more; the model's prefix should be among them
   */
  public static Recording of(Model model, int... tokens) {
    try (Decoder decoder = new Decoder(model)) {
      return of(decoder, tokens);
    }
  }

  /** The same on a decoder of the model, which stays the caller's. */
  public static Recording of(Decoder decoder, int... tokens) {
    List<float[]> queries = new ArrayList<>();
    decoder.probe(
        (layer, asked, found, rows) -> {
          float[] copy = new float[rows * decoder.model().geometry().querySize(layer)];
          asked.get(0, copy);
          queries.add(copy);
        });
    try {
      Recording recording = read(decoder, new HalfPrecision(), tokens);
      recording.queries.addAll(queries);
      return recording;
    } finally {
      decoder.probe(null);
    }
  }

  /** The same with keys as they are before RoPE, and without queries. */
  public static Recording beforeRope(Decoder decoder, int... tokens) {
    Model model = decoder.model();
    CommVqCodebooks none = CommVqCodebooks.builder(model.geometry()).build();
    return read(decoder, CommVq.of(none, model.config().rope()), tokens);
  }

  private static Recording read(Decoder decoder, KvMethod method, int... tokens) {
    Model model = decoder.model();
    Recording recording = new Recording(model, tokens.length);
    try (KvCache cache = KvCache.builder(model.geometry()).method(method).keysBeforeRope(method.keysBeforeRope()).build();
        KvSequence sequence = cache.newSequence()) {
      decoder.decode(
          List.of(new Decoder.Feed(sequence, tokens, 0, tokens.length, 0)), (feed, token, logits) -> {});
      for (int layer = 0; layer < model.geometry().layers(); layer++) {
        recording.keys.add(sequence.read(layer, Side.KEYS, 0, tokens.length));
        recording.values.add(sequence.read(layer, Side.VALUES, 0, tokens.length));
      }
    }
    return recording;
  }

  /** The model that was recorded. */
  public Model model() {
    return model;
  }

  /** Tokens of the text. */
  public int tokens() {
    return tokens;
  }

  /** Keys, or values, of a layer: {@code [tokens][kvHeads][headDim]}. */
  public float[] rows(int layer, Side side) {
    return (side == Side.KEYS ? keys : values).get(layer);
  }

  /** All that calibration wants of a layer, of a recording with queries. */
  public AttentionSample sample(int layer) {
    return new AttentionSample(
        tokens, keys.get(layer), true, values.get(layer), tokens, queries.get(layer), true);
  }
}
