package dev.kvasir.lab.evaluate;

import dev.kvasir.KvMethod;
import dev.kvasir.Precision;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.calibrate.ThresholdSearch;
import dev.kvasir.method.MixKvq;
import dev.kvasir.runner.Decoder;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;

/**
 * Thresholds of MixKVQ for a model, found as the paper does: trials on texts for tuning, of which those remain that no other
 * beats both in bits of a key and in how near predictions stay to those of the 16-bit cache.
 */
public final class Thresholds {

  /** What the profile is called. */
  public static final String NAME = "mix-kvq";

  private static final String TAU16 = "tau16";
  private static final String TAU4 = "tau4";

  private Thresholds() {}

  /**
   * Runs the trials.
   *
   * @param trials how many; the paper makes 30
   * @param progress hears of each: its score is minus the divergence, in nats a token
   * @throws IllegalArgumentException if there is no text
   */
  public static ThresholdSearch.Result search(
      Calibrations calibrations, int trials, Consumer<ThresholdSearch.Trial> progress) {
    return calibrations.onceFromTexts(
        "thresholds",
        texts -> {
          try (Decoder decoder = new Decoder(calibrations.model(), calibrations.backend(), Precision.EXACT)) {
            Predictions predictions = new Predictions(decoder, texts.predicted());
            return ThresholdSearch.builder()
                .trials(trials)
                .progress(progress)
                .build()
                .run(
                    (tau16, tau4) -> {
                      Predictions.Outcome found = predictions.with(MixKvq.thresholds(tau16, tau4));
                      return new ThresholdSearch.Measurement(-found.divergence(), found.stats().total().keyBits());
                    });
          }
        });
  }

  /** A profile that says which trial was chosen. */
  public static Profile profile(Calibrations calibrations, ThresholdSearch.Trial chosen) {
    return Profile.builder(calibrations.model().geometry())
        .note("method", NAME)
        .note(TAU16, String.valueOf(chosen.tau16()))
        .note(TAU4, String.valueOf(chosen.tau4()))
        .build();
  }

  /** MixKVQ with the thresholds of the model's profile, if it has one. */
  static Optional<KvMethod> found(Calibrations calibrations) {
    return calibrations
        .profile(NAME)
        .map(Profile::notes)
        .filter(notes -> notes.containsKey(TAU16) && notes.containsKey(TAU4))
        .map(Thresholds::method);
  }

  private static KvMethod method(Map<String, String> notes) {
    return MixKvq.thresholds(Double.parseDouble(notes.get(TAU16)), Double.parseDouble(notes.get(TAU4)));
  }
}
