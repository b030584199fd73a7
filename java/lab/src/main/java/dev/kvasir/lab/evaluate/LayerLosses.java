package dev.kvasir.lab.evaluate;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Precision;
import dev.kvasir.Side;
import dev.kvasir.calibrate.Sensitivities;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.Uniform;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * What coding a layer costs a model, for models without recorded gradients: one side of some layers is coded, all else is
 * exact, and the divergence of the predictions is the loss. It takes the place of PM-KVQ's sensitivities in a plan.
 */
public final class LayerLosses {

  /** The width that is measured. */
  private static final int MEASURED = 2;

  /** A bit more divides the error by two and the loss, which goes with its square, by four. */
  private static final List<Integer> WIDTHS = List.of(2, 4, 8, 16);

  /** Neighbouring layers feel errors alike: no more groups of them than this are measured where that takes long. */
  private static final int GROUPS = 8;

  private static final double LEAST = 1e-9;

  private final Model model;
  private final Decoder decoder;
  private final List<Sample> samples;

  private LayerLosses(Decoder decoder, List<Sample> samples) {
    this.model = decoder.model();
    this.decoder = decoder;
    this.samples = samples;
  }

  /**
   * Measures all layers on the texts that are there for tuning.
   *
   * @param says hears how far it is, a line at a time
   * @throws IllegalArgumentException if there is no text
   */
  public static Sensitivities measure(Calibrations calibrations, Consumer<String> says) {
    return calibrations.onceFromTexts(
        "losses of layers",
        (texts, samples) -> {
          try (Decoder decoder = new Decoder(calibrations.model(), calibrations.backend(), Precision.EXACT)) {
            int groups = calibrations.thorough() ? Integer.MAX_VALUE : GROUPS;
            return new LayerLosses(decoder, samples).measure(groups, says);
          }
        });
  }

  private Sensitivities measure(int groups, Consumer<String> says) {
    int layers = model.geometry().layers();
    int together = (int) Math.ceil((double) layers / groups);
    Scorer exact = run(new HalfPrecision(), null);
    List<List<Double>> keys = new ArrayList<>();
    List<List<Double>> values = new ArrayList<>();
    for (int from = 0; from < layers; from += together) {
      int to = Math.min(layers, from + together);
      List<Double> key = losses(from, to, Side.KEYS, exact);
      List<Double> value = losses(from, to, Side.VALUES, exact);
      keys.addAll(Collections.nCopies(to - from, key));
      values.addAll(Collections.nCopies(to - from, value));
      says.accept(
          String.format(
              Locale.ROOT, "layers to %d of %d: keys at %d bits cost %.1e, values %.1e", to, layers, MEASURED, key.get(0), value.get(0)));
    }
    return new Sensitivities(WIDTHS, keys, values);
  }

  /** Of one layer among some, at each width. */
  private List<Double> losses(int from, int to, Side side, Scorer exact) {
    double loss = Math.max(LEAST, run(new Coded(from, to, side), exact).divergence() / (to - from));
    return WIDTHS.stream().map(width -> loss / Math.pow(4, width - MEASURED)).toList();
  }

  private Scorer run(KvMethod method, @Nullable Scorer exact) {
    Scorer scorer = new Scorer(samples, model.tokenizer(), model.config().vocabulary(), exact);
    try (KvCache cache = KvCache.builder(model.geometry()).method(method).build()) {
      List<KvSequence> sequences = samples.stream().map(sample -> cache.newSequence()).toList();
      new StreamRunner(decoder, () -> false).run(samples, sequences, scorer, tokens -> {});
    }
    return scorer;
  }

  /** One side of layers from .. to - 1 in codes; all else in 16 bits. */
  private record Coded(int from, int to, Side side) implements KvMethod {

    private static final Uniform CODES = Uniform.bits(MEASURED);

    @Override
    public String name() {
      return side + " of layers " + from + " to " + (to - 1);
    }

    @Override
    public CodecChoice keys(int layer) {
      return is(layer, Side.KEYS) ? CODES.keys(layer) : KvMethod.super.keys(layer);
    }

    @Override
    public CodecChoice values(int layer) {
      return is(layer, Side.VALUES) ? CODES.values(layer) : KvMethod.super.values(layer);
    }

    @Override
    public int sinks() {
      return CODES.sinks();
    }

    private boolean is(int layer, Side asked) {
      return layer >= from && layer < to && asked == side;
    }
  }
}
