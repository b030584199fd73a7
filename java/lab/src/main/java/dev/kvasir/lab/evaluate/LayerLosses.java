package dev.kvasir.lab.evaluate;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvMethod;
import dev.kvasir.Precision;
import dev.kvasir.Side;
import dev.kvasir.calibrate.Sensitivities;
import dev.kvasir.method.Uniform;
import dev.kvasir.runner.Decoder;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Consumer;

/**
 * What coding a layer costs a model, for models without recorded gradients: one side of some layers is coded, all else is
 * exact, and the divergence of the predictions is the loss.
 */
public final class LayerLosses {

  /** The width that PM-KVQ's are measured at. */
  private static final int MEASURED = 2;

  /** A bit more divides the error by two and the loss, which goes with its square, by four. */
  private static final List<Integer> WIDTHS = List.of(2, 4, 8, 16);

  /** Neighbouring layers feel errors alike: no more groups of them than this are measured where that takes long. */
  private static final int GROUPS = 8;

  private static final double LEAST = 1e-9;

  private LayerLosses() {}

  /**
   * Measures all layers on the texts that are there for tuning: in place of PM-KVQ's sensitivities in a plan.
   *
   * @param says hears how far it is, a line at a time
   * @throws IllegalArgumentException if there is no text
   */
  public static Sensitivities measure(Calibrations calibrations, Consumer<String> says) {
    return calibrations.onceFromTexts(
        "losses of layers",
        texts -> {
          try (Decoder decoder = new Decoder(calibrations.model(), calibrations.backend(), Precision.EXACT)) {
            Predictions predictions = new Predictions(decoder, texts.predicted());
            int layers = calibrations.model().geometry().layers();
            List<List<Double>> losses =
                of(Uniform.bits(MEASURED), layers, predictions, calibrations.thorough(), LEAST, says);
            return new Sensitivities(WIDTHS, atWidths(losses.get(0)), atWidths(losses.get(1)));
          }
        });
  }

  private static List<List<Double>> atWidths(List<Double> losses) {
    return losses.stream()
        .map(loss -> WIDTHS.stream().map(width -> loss / Math.pow(4, width - MEASURED)).toList())
        .toList();
  }

  /**
   * Losses by side and layer.
   *
   * @param method what one side of some layers is coded with
   * @param thorough whether each layer is measured for itself, however many there are
   * @param least no loss counts as less
   */
  static List<List<Double>> of(
      KvMethod method, int layers, Predictions predictions, boolean thorough, double least, Consumer<String> says) {
    int together = thorough ? 1 : (int) Math.ceil((double) layers / GROUPS);
    List<List<Double>> losses = List.of(new ArrayList<>(), new ArrayList<>());
    for (int from = 0; from < layers; from += together) {
      int to = Math.min(layers, from + together);
      for (Side side : Side.values()) {
        double loss = predictions.with(new SomeLayers(method, from, to, side)).divergence() / (to - from);
        losses.get(side.code()).addAll(Collections.nCopies(to - from, Math.max(least, loss)));
      }
      says.accept(
          String.format(
              Locale.ROOT,
              "layer %d of %d: coding keys costs %.1e, values %.1e",
              to,
              layers,
              losses.get(0).get(from),
              losses.get(1).get(from)));
    }
    return losses;
  }

  /** A method on one side of layers from .. to - 1; all else in 16 bits. */
  private record SomeLayers(KvMethod of, int from, int to, Side side) implements KvMethod {

    @Override
    public String name() {
      return of.name() + ", " + side + " of layers " + from + " to " + (to - 1);
    }

    @Override
    public CodecChoice keys(int asked) {
      return is(asked, Side.KEYS) ? of.keys(asked) : KvMethod.super.keys(asked);
    }

    @Override
    public CodecChoice values(int asked) {
      return is(asked, Side.VALUES) ? of.values(asked) : KvMethod.super.values(asked);
    }

    @Override
    public Optional<Codebook> codebook(int asked, Side askedSide) {
      return is(asked, askedSide) ? of.codebook(asked, askedSide) : Optional.empty();
    }

    @Override
    public int sinks() {
      return of.sinks();
    }

    private boolean is(int asked, Side askedSide) {
      return asked >= from && asked < to && askedSide == side;
    }
  }
}
