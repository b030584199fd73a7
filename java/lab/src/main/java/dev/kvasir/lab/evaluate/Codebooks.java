package dev.kvasir.lab.evaluate;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.Preset;
import dev.kvasir.PresetTrainer;
import dev.kvasir.Side;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.commvq.CommVq;
import dev.kvasir.commvq.CommVqCodebooks;
import dev.kvasir.commvq.KeyCodebook;
import dev.kvasir.commvq.KeyTrainer;
import dev.kvasir.commvq.Rope;
import dev.kvasir.commvq.ValueCodebook;
import dev.kvasir.commvq.ValueFitter;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;

/** Codebooks, trained on what is there for tuning. */
public final class Codebooks {

  private static final int KEY_STEPS = 25;
  private static final int VALUE_STEPS = 10;
  private static final double INDEX_BITS = 12; // of a code (a, b) with 64 entries
  private static final int MOST_BITS = 2;

  private Codebooks() {}

  /** CommVQ at so many bits per element on both sides. */
  static KvMethod commVq(Calibrations calibrations, int bits) {
    KvGeometry geometry = calibrations.model().geometry();
    CommVqCodebooks trained =
        calibrations.onceFromRows(
            "codebooks of " + bits + " bits",
            rows -> {
              CommVqCodebooks.Builder codebooks = CommVqCodebooks.builder(geometry);
              for (int layer = 0; layer < geometry.layers(); layer++) {
                KeyCodebook keys = keys(calibrations).get(layer);
                codebooks
                    .keys(layer, keys.first(stages(bits, geometry.headDim(layer))))
                    .values(layer, trainValues(geometry, rows, layer, bits));
              }
              return codebooks.build();
            });
    return CommVq.of(trained, rope(calibrations));
  }

  /** A preset, with the codebooks of the model's profile of that name, or trained now where there is none. */
  static KvMethod preset(Calibrations calibrations, Preset preset) {
    if (!preset.trained()) {
      return preset.method();
    }
    Optional<Profile> profile = calibrations.profile(preset.name().toLowerCase(Locale.ROOT));
    return preset.method(
        profile.map(CommVqCodebooks::of).orElseGet(() -> train(calibrations, preset)), rope(calibrations));
  }

  /** Trains the codebooks of a preset. */
  public static CommVqCodebooks train(Calibrations calibrations, Preset preset) {
    KvGeometry geometry = calibrations.model().geometry();
    PresetTrainer trainer = PresetTrainer.of(preset, geometry, rope(calibrations).pairs());
    return calibrations.onceFromRows(
        "codebooks of " + preset,
        rows -> {
          for (int layer = 0; layer < geometry.layers(); layer++) {
            trainer.train(
                layer, rows.of(layer, Side.KEYS), rows.of(layer, Side.VALUES), rows.count(), progress -> {});
          }
          return trainer.codebooks();
        });
  }

  /** Stages are trained one after the other: one training of the most bits serves fewer, too. */
  private static List<KeyCodebook> keys(Calibrations calibrations) {
    return calibrations.onceFromRows("key codebooks", rows -> trainKeys(calibrations.model().geometry(), rows));
  }

  private static List<KeyCodebook> trainKeys(KvGeometry geometry, TrainingRows rows) {
    List<KeyCodebook> codebooks = new ArrayList<>();
    for (int layer = 0; layer < geometry.layers(); layer++) {
      int headDim = geometry.headDim(layer);
      try (KeyTrainer trainer =
          KeyTrainer.builder(geometry.kvHeads(layer), headDim)
              .stages(stages(MOST_BITS, headDim))
              .steps(KEY_STEPS)
              .build()) {
        trainer.add(rows.of(layer, Side.KEYS), rows.count());
        codebooks.add(trainer.train(progress -> {}));
      }
    }
    return codebooks;
  }

  private static ValueCodebook trainValues(KvGeometry geometry, TrainingRows rows, int layer, int bits) {
    int width = geometry.rowSize(layer);
    try (ValueFitter fitter = ValueFitter.of(width, bits * width, VALUE_STEPS)) {
      fitter.add(rows.of(layer, Side.VALUES), rows.count());
      return fitter.train(progress -> {});
    }
  }

  private static int stages(int bits, int headDim) {
    return (int) Math.max(1, Math.round(bits * headDim / INDEX_BITS));
  }

  private static Rope rope(Calibrations calibrations) {
    return calibrations.model().config().rope().forCache();
  }
}
