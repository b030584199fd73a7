package dev.kvasir.preset;

import dev.kvasir.KvGeometry;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Checks;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.training.KeyTrainer;
import dev.kvasir.training.TrainingListener;
import dev.kvasir.training.ValueFitter;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * Trains the codebooks of a {@link Preset}, one layer after the other.
 *
 * <pre>{@code
 * PresetTrainer trainer = PresetTrainer.of(Preset.BALANCED, geometry, RopePairs.HALVES);
 * for (int layer = 0; layer < geometry.layers(); layer++) {
 *   trainer.train(layer, keysBeforeRope, values, tokens, progress -> {});
 * }
 * Profile.builder(geometry).codebooks(trainer.codebooks()).build().save(path);
 * }</pre>
 *
 * <p>A few thousand tokens do, if they are of all kinds that the model will read, and picked from many places. Training takes
 * seconds a layer for values, and minutes for keys with many tokens and stages. Equal rows and options give equal codebooks.
 * Not for use by several threads.
 */
public final class PresetTrainer {

  private final Preset preset;
  private final KvGeometry geometry;
  private final RopePairs pairs;
  private final CommVqCodebooks.Builder codebooks;
  private int keySteps = 25;
  private int valueSteps = 10;

  private PresetTrainer(Preset preset, KvGeometry geometry, RopePairs pairs) {
    this.preset = preset;
    this.geometry = geometry;
    this.pairs = pairs;
    this.codebooks = CommVqCodebooks.builder(geometry);
  }

  /**
   * A trainer that takes at most 25 steps a stage of keys, and 10 for values.
   *
   * @param preset what the codebooks are for
   * @param geometry the model
   * @param pairs which channels RoPE rotates together
   * @return a new trainer
   * @throws IllegalArgumentException if the preset needs no codebooks
   */
  public static PresetTrainer of(Preset preset, KvGeometry geometry, RopePairs pairs) {
    Checks.require(preset.trained(), preset + " needs no codebooks");
    return new PresetTrainer(
        preset, Objects.requireNonNull(geometry, "geometry"), Objects.requireNonNull(pairs, "pairs"));
  }

  /**
   * How long to train.
   *
   * @param keys most steps of a stage, 1..10000
   * @param values most steps, 1..10000
   * @return this trainer
   */
  public PresetTrainer steps(int keys, int values) {
    this.keySteps = keys;
    this.valueSteps = values;
    return this;
  }

  /**
   * Trains a layer; a second training of it replaces the first.
   *
   * @param layer 0 .. layers-1
   * @param keys {@code [tokens][kvHeads][headDim]} <b>before</b> RoPE; null for presets whose keys need no codebook
   * @param values {@code [tokens][kvHeads][headDim]}
   * @param tokens 1 or more
   * @param listener told after every step
   * @throws IllegalArgumentException if there is no such layer, keys are missing, an array is too short or a number of
   *     steps out of range
   * @throws NotFiniteException if an element is NaN, infinite or above 32752 in magnitude
   */
  public void train(int layer, float @Nullable [] keys, float[] values, int tokens, TrainingListener listener) {
    int headDim = geometry.headDim(layer);
    int width = geometry.rowSize(layer);
    int stages = preset.keyStages(headDim);
    if (stages > 0) {
      if (keys == null) {
        throw new IllegalArgumentException(preset + " needs keys before RoPE to train on");
      }
      try (KeyTrainer trainer =
          KeyTrainer.builder(geometry.kvHeads(layer), headDim)
              .pairs(pairs)
              .stages(stages)
              .entries(Preset.ENTRIES)
              .steps(keySteps)
              .build()) {
        trainer.add(keys, tokens);
        codebooks.keys(layer, trainer.train(listener));
      }
    }
    try (ValueFitter fitter = ValueFitter.of(width, preset.valueCodes(width), valueSteps)) {
      fitter.add(values, tokens);
      codebooks.values(layer, fitter.train(listener));
    }
  }

  /**
   * What has been trained.
   *
   * @return codebooks for {@link Preset#method(CommVqCodebooks, dev.kvasir.rope.Rope)} once all layers are in
   */
  public CommVqCodebooks codebooks() {
    return codebooks.build();
  }
}
