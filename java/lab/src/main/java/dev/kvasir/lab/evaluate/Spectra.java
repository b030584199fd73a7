package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Precision;
import dev.kvasir.Side;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.calibrate.SpectralCalibrator;
import dev.kvasir.calibrate.SpectralLosses;
import dev.kvasir.calibrate.SpectralLosses.Temper;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.Spectral;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import java.util.List;
import java.util.Locale;
import java.util.function.Consumer;
import java.util.stream.DoubleStream;

/** Calibrates Spectral: bases from what a model reads, losses and their temper from how it predicts. */
public final class Spectra {

  /** What a profile is called, and what commands call the method. */
  public static final String NAME = "spectral";

  /** Powers of the losses that are tried on whole plans, and the bits of those. */
  private static final double[] TEMPERS = {0, 0.25, 0.5, 0.75, 1, 1.25, 1.5};
  private static final double[] TEMPER_BITS = {1, 2, 3};

  /** Tokens of a text that the method keeps exact, and how many make one page with them. */
  private static final int SINKS = 4;
  private static final int LEAST_TOKENS = SINKS + KvCache.PAGE_TOKENS;

  /** Of the queries, which are many, one in so many is enough. */
  private static final int QUERY_STEP = 4;

  /** No loss counts as less: what rounding alone makes of predictions. */
  private static final double LEAST_LOSS = 1e-7;

  private final Model model;
  private final Decoder decoder;
  private final Consumer<String> says;

  private Spectra(Model model, Decoder decoder, Consumer<String> says) {
    this.model = model;
    this.decoder = decoder;
    this.says = says;
  }

  /** Spectral at so many code bits on average, by the model's profile, or calibrated now where there is none. */
  static KvMethod method(Calibrations calibrations, double bits) {
    return calibrations.remember(
        NAME + " at " + bits + " bits",
        () -> calibrations.profile(NAME).orElseGet(() -> calibrate(calibrations, calibrations.quick(), line -> {})).spectral(bits));
  }

  /**
   * Calibrates on the texts that are there for tuning.
   *
   * @param alike whether all layers are to have the same bits: what each loses, which takes longest, is then not measured
   * @param says hears how far it is, a line at a time
   * @throws IllegalArgumentException if there is no text
   */
  public static Profile calibrate(Calibrations calibrations, boolean alike, Consumer<String> says) {
    return calibrations.onceFromTexts(
        NAME,
        texts -> {
          Model model = calibrations.model();
          try (Decoder decoder = new Decoder(model, calibrations.backend(), Precision.EXACT)) {
            Spectra spectra = new Spectra(model, decoder, says);
            SpectralBases bases = spectra.bases(texts.read());
            SpectralLosses losses =
                alike
                    ? SpectralLosses.equal(bases.geometry())
                    : spectra.losses(bases, texts, calibrations.thorough());
            return Profile.builder(bases.geometry()).spectral(bases, losses).note("model", model.name()).build();
          }
        });
  }

  private SpectralBases bases(List<int[]> texts) {
    KvGeometry geometry = model.geometry();
    SpectralCalibrator calibrator = new SpectralCalibrator(geometry);
    for (int layer = 0; layer < geometry.layers(); layer++) {
      calibrator.outputProjection(layer, decoder.outputProjection(layer), model.config().hidden());
    }
    List<int[]> pages = texts.stream().filter(tokens -> tokens.length >= LEAST_TOKENS).toList();
    if (pages.isEmpty()) {
      throw new IllegalArgumentException("there is no text of " + LEAST_TOKENS + " tokens to calibrate on");
    }
    for (int i = 0; i < pages.size(); i++) {
      read(pages.get(i), calibrator);
      says.accept("text " + (i + 1) + " of " + pages.size() + ": " + pages.get(i).length + " tokens read");
    }
    SpectralBases bases = calibrator.bases();
    says.accept("bases of " + geometry.layers() + " layers");
    return bases;
  }

  /** Shows the calibrator what the model makes of a text, but for the tokens that stay exact. */
  private void read(int[] tokens, SpectralCalibrator calibrator) {
    KvGeometry geometry = model.geometry();
    int count = tokens.length - SINKS;
    decoder.probe(
        (layer, queries, outputs, rows) -> {
          int width = geometry.querySize(layer);
          int some = count / QUERY_STEP;
          float[] asked = new float[some * width];
          for (int i = 0; i < some; i++) {
            queries.get((SINKS + i * QUERY_STEP) * width, asked, i * width, width);
          }
          calibrator.addQueries(layer, asked, some);
        });
    try (KvCache cache = KvCache.builder(geometry).method(new HalfPrecision()).build();
        KvSequence sequence = cache.newSequence()) {
      decoder.decode(List.of(new Decoder.Feed(sequence, tokens, 0, tokens.length, 0)), (feed, token, logits) -> {});
      for (int layer = 0; layer < geometry.layers(); layer++) {
        for (Side side : Side.values()) {
          calibrator.addRows(layer, side, sequence.read(layer, side, SINKS, count), count);
        }
      }
    } finally {
      decoder.probe(null);
    }
  }

  /**
   * What coding one side of some layers costs, and how much of the differences to believe. Plans are judged by other tokens:
   * those that losses were measured on speak for them.
   */
  private SpectralLosses losses(SpectralBases bases, Calibrations.Texts texts, boolean thorough) {
    Predictions predictions = new Predictions(decoder, texts.predicted());
    List<List<Double>> losses =
        LayerLosses.of(
            Spectral.of(bases, SpectralLosses.MEASURED_BITS),
            model.geometry().layers(),
            predictions,
            thorough,
            LEAST_LOSS,
            says);
    SpectralLosses measured = SpectralLosses.of(model.geometry(), losses.get(0), losses.get(1));
    Predictions judges = new Predictions(decoder, texts.heldOut());
    return measured.tempers(
        DoubleStream.of(TEMPER_BITS).mapToObj(bits -> temper(bases, measured, bits, judges)).toList());
  }

  /**
   * How much of the differences between losses plans of some bits should believe: what whole ones say. All are asked, as what
   * they lose need not fall towards the best: a plan moves whole pages.
   */
  private Temper temper(SpectralBases bases, SpectralLosses losses, double bits, Predictions judges) {
    double least = Double.POSITIVE_INFINITY;
    Temper best = new Temper(bits, 1);
    for (double power : TEMPERS) {
      double loss = loss(bases, losses, bits, power, judges);
      if (loss < least) {
        least = loss;
        best = new Temper(bits, power);
      }
    }
    return best;
  }

  private double loss(SpectralBases bases, SpectralLosses losses, double bits, double power, Predictions judges) {
    double loss = judges.with(losses.temper(power).plan(bases, bits)).divergence();
    says.accept(String.format(Locale.ROOT, "temper %.2f: %.5f at %.1f bits", power, loss, bits));
    return loss;
  }
}
