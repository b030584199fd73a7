package dev.kvasir.lab.evaluate;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Precision;
import dev.kvasir.Side;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.calibrate.SpectralCalibrator;
import dev.kvasir.calibrate.SpectralLosses;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.Spectral;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** Calibrates Spectral: bases from what a model reads, losses and their temper from how it predicts. */
public final class Spectra {

  /** What a profile is called, and what commands call the method. */
  public static final String NAME = "spectral";

  /** Powers of the losses that are tried on whole plans, at so many bits. */
  private static final double[] TEMPERS = {0, 0.25, 0.5, 0.75, 1};
  private static final double TEMPER_BITS = 1.5;

  /** Tokens of a text that the method keeps exact, and how many make one page with them. */
  private static final int SINKS = 4;
  private static final int LEAST_TOKENS = SINKS + KvCache.PAGE_TOKENS;

  /** Of the queries, which are many, one in so many is enough. */
  private static final int QUERY_STEP = 4;

  /** Neighbouring layers feel errors alike: no more groups of them than this are measured where that takes long. */
  private static final int GROUPS = 8;

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
        () -> calibrations.profile(NAME).orElseGet(() -> calibrate(calibrations, false, line -> {})).spectral(bits));
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
        (texts, samples) -> {
          Model model = calibrations.model();
          try (Decoder decoder = new Decoder(model, calibrations.backend(), Precision.EXACT)) {
            Spectra spectra = new Spectra(model, decoder, says);
            SpectralBases bases = spectra.bases(texts);
            SpectralLosses losses =
                alike
                    ? SpectralLosses.equal(bases.geometry())
                    : spectra.losses(bases, samples, calibrations.thorough() ? Integer.MAX_VALUE : GROUPS);
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

  /** What coding one side of some layers costs, all else being exact, and how much of the differences to believe. */
  private SpectralLosses losses(SpectralBases bases, List<Sample> samples, int groups) {
    int layers = model.geometry().layers();
    int together = (int) Math.ceil((double) layers / groups);
    Spectral all = Spectral.of(bases, SpectralLosses.MEASURED_BITS);
    Scorer exact = run(new HalfPrecision(), samples, null);
    List<List<Double>> losses = List.of(new ArrayList<>(), new ArrayList<>());
    for (int from = 0; from < layers; from += together) {
      int to = Math.min(layers, from + together);
      for (Side side : Side.values()) {
        double loss = run(new SomeLayers(all, from, to, side), samples, exact).divergence() / (to - from);
        losses.get(side.code()).addAll(Collections.nCopies(to - from, Math.max(LEAST_LOSS, loss)));
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
    return temper(bases, new SpectralLosses(model.geometry(), losses.get(0), losses.get(1), 1), samples, exact);
  }

  /** How much of the differences between losses to believe: what whole plans say. */
  private SpectralLosses temper(SpectralBases bases, SpectralLosses losses, List<Sample> samples, Scorer exact) {
    double least = Double.POSITIVE_INFINITY;
    SpectralLosses best = losses;
    for (double temper : TEMPERS) {
      SpectralLosses tried = losses.temper(temper);
      double loss = run(tried.plan(bases, TEMPER_BITS), samples, exact).divergence();
      says.accept(String.format(Locale.ROOT, "temper %.2f: %.5f at %.1f bits", temper, loss, TEMPER_BITS));
      if (loss < least) {
        least = loss;
        best = tried;
      }
    }
    return best;
  }

  private Scorer run(KvMethod method, List<Sample> samples, @Nullable Scorer exact) {
    Scorer scorer = new Scorer(samples, model.tokenizer(), model.config().vocabulary(), exact);
    try (KvCache cache = KvCache.builder(model.geometry()).method(method).build()) {
      List<KvSequence> sequences = samples.stream().map(sample -> cache.newSequence()).toList();
      new StreamRunner(decoder, () -> false).run(samples, sequences, scorer, tokens -> {});
    }
    return scorer;
  }

  /** A method on one side of layers from .. to - 1; all else in 16 bits. */
  private record SomeLayers(Spectral of, int from, int to, Side side) implements KvMethod {

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
