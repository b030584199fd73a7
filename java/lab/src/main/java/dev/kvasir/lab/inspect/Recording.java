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
    return of(model, new HalfPrecision(), tokens);
  }

  /** The same, with keys as they are before RoPE. */
  public static Recording beforeRope(Model model, int... tokens) {
    CommVqCodebooks none = CommVqCodebooks.builder(model.geometry()).build();
    return of(model, CommVq.of(none, model.config().rope()), tokens);
  }

  private static Recording of(Model model, KvMethod method, int... tokens) {
    Recording recording = new Recording(model, tokens.length);
    Decoder decoder = new Decoder(model);
    decoder.probe(
        (layer, asked, found, rows) -> {
          float[] copy = new float[rows * model.geometry().querySize(layer)];
          asked.get(0, copy);
          recording.queries.add(copy);
        });
    try (KvCache cache = KvCache.builder(model.geometry()).method(method).build();
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

  /** All that calibration wants of a layer. */
  public AttentionSample sample(int layer) {
    return new AttentionSample(
        tokens, keys.get(layer), true, values.get(layer), tokens, queries.get(layer), true);
  }
}
