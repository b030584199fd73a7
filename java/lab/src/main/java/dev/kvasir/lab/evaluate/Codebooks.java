package dev.kvasir.lab.evaluate;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.Side;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.codebook.KeyCodebook;
import dev.kvasir.codebook.TrainedValues;
import dev.kvasir.codebook.ValueCodebook;
import dev.kvasir.method.CommVq;
import dev.kvasir.rope.Rope;
import dev.kvasir.training.KeyTrainer;
import dev.kvasir.training.ValueFitter;
import dev.kvasir.training.ValueTrainer;
import java.util.ArrayList;
import java.util.List;

/** Codebooks, trained on what is there for tuning. */
public final class Codebooks {

  private static final String COMM_VQ = "comm-vq-";
  private static final String ENCODER = "-encoder";
  private static final int VALUE_STEPS = 10;
  private static final double INDEX_BITS = 12; // of a code (a, b) with 64 entries
  private static final int MOST_BITS = 2;

  private Codebooks() {}

  /** CommVQ at so many bits per element on both sides. */
  static KvMethod commVq(Calibrations calibrations, int bits) {
    return CommVq.of(find(calibrations, COMM_VQ + bits), rope(calibrations));
  }

  /** The same with values by a trained encoder. */
  static KvMethod withEncoder(Calibrations calibrations, int bits) {
    return CommVq.of(find(calibrations, encoderName(bits)), rope(calibrations));
  }

  static String encoderName(int bits) {
    return COMM_VQ + bits + ENCODER;
  }

  /** Those of the model's profile of that name, or trained now where there is none. */
  private static CommVqCodebooks find(Calibrations calibrations, String method) {
    return calibrations
        .profile(method)
        .map(profile -> complete(profile.codebooks(), method))
        .orElseGet(() -> train(calibrations, method));
  }

  /** Layers without codebooks would be kept in 16 bits, and nobody would see why they are so good. */
  private static CommVqCodebooks complete(CommVqCodebooks codebooks, String method) {
    KvGeometry geometry = codebooks.geometry();
    for (int layer = 0; layer < geometry.layers(); layer++) {
      boolean own = geometry.source(layer) == layer;
      if (own && (codebooks.keys(layer).isEmpty() || codebooks.values(layer).isEmpty())) {
        throw new IllegalArgumentException(
            "the profile of " + method + " lacks codebooks of layer " + layer + ": kvasir train makes one with them");
      }
    }
    return codebooks;
  }

  /** Names of the methods that need codebooks. */
  public static List<String> methods() {
    return List.of(COMM_VQ + 1, COMM_VQ + 2, encoderName(1), encoderName(2));
  }

  /**
   * Trains the codebooks of a method.
   *
   * @throws IllegalArgumentException if it is not one of {@link #methods}
   */
  public static CommVqCodebooks train(Calibrations calibrations, String method) {
    return train(calibrations, method, (layers, all) -> {});
  }

  /** How far a training is. */
  public interface Listener {
    /** So many layers are done. */
    void done(int layers, int all);
  }

  /** The same, and says how far it is. */
  public static CommVqCodebooks train(Calibrations calibrations, String method, Listener listener) {
    if (!methods().contains(method)) {
      throw new IllegalArgumentException(
          "no codebooks for \"" + method + "\", but for " + String.join(", ", methods()));
    }
    return calibrations.onceFromRows(
        "codebooks of " + method,
        rows ->
            train(calibrations, rows, method.charAt(COMM_VQ.length()) - '0', method.endsWith(ENCODER), listener));
  }

  private static CommVqCodebooks train(
      Calibrations calibrations, TrainingRows rows, int bits, boolean encoder, Listener listener) {
    KvGeometry geometry = calibrations.model().geometry();
    CommVqCodebooks.Builder codebooks = CommVqCodebooks.builder(geometry);
    for (int layer = 0; layer < geometry.layers(); layer++) {
      KeyCodebook keys = keys(calibrations).get(layer);
      codebooks.keys(layer, keys.first(stages(bits, geometry.headDim(layer))));
      ValueCodebook fitted = trainValues(geometry, rows, layer, bits);
      if (encoder) {
        codebooks.values(layer, trainEncoder(geometry, rows, layer, fitted));
      } else {
        codebooks.values(layer, fitted);
      }
      listener.done(layer + 1, geometry.layers());
    }
    return codebooks.build();
  }

  /** The paper's: a network says which entries make up a value. Its codebook begins where least squares ended. */
  private static TrainedValues trainEncoder(KvGeometry geometry, TrainingRows rows, int layer, ValueCodebook fitted) {
    try (ValueTrainer trainer =
        ValueTrainer.builder(geometry.rowSize(layer), fitted.codes()).start(fitted).build()) {
      trainer.add(rows.of(layer, Side.VALUES), rows.count());
      return trainer.train(progress -> {});
    }
  }

  /** Stages are trained one after the other: one training of the most bits serves fewer, too. */
  private static List<KeyCodebook> keys(Calibrations calibrations) {
    return calibrations.onceFromRows("key codebooks", rows -> trainKeys(calibrations, rows));
  }

  private static List<KeyCodebook> trainKeys(Calibrations calibrations, TrainingRows rows) {
    KvGeometry geometry = calibrations.model().geometry();
    List<KeyCodebook> codebooks = new ArrayList<>();
    for (int layer = 0; layer < geometry.layers(); layer++) {
      int headDim = geometry.headDim(layer);
      try (KeyTrainer trainer =
          KeyTrainer.builder(geometry.kvHeads(layer), headDim)
              .pairs(rope(calibrations).pairs())
              .stages(stages(MOST_BITS, headDim))
              .steps(calibrations.keySteps())
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
    return calibrations.model().config().rope();
  }
}
