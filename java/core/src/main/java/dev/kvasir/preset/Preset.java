package dev.kvasir.preset;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.codebook.KeyCodebook;
import dev.kvasir.codebook.ValueCodebook;
import dev.kvasir.internal.Checks;
import dev.kvasir.method.CommVq;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.Mixed;
import dev.kvasir.method.Uniform;
import dev.kvasir.rope.Rope;
import org.jspecify.annotations.Nullable;

/**
 * The best quality at so many bits: recipes that were chosen by measuring, mixtures of the methods. What each ingredient
 * buys on a real model is in docs/lab.md.
 *
 * <pre>{@code
 * KvMethod method = Preset.BALANCED.method(Profile.load(path, geometry), rope);
 * KvCache cache = KvCache.builder(geometry).method(method).build();
 * }</pre>
 *
 * <p>All but {@link #NEAR_LOSSLESS} need codebooks that {@link PresetTrainer} makes from some thousand tokens of what the
 * model will read; codebooks of text alone serve text alone. Bits are those of a sequence of 4096 tokens in all, with scales,
 * indices and 16-bit rows; these lie in blocks of 16 tokens, which adds 0.05 for the sinks. Codebooks, which all sequences
 * share, come on top: {@link KvMethod#codebookBytes}.
 */
public enum Preset {

  /** Next to no loss, without any training: 4 bits, those of keys given to the channels that need them most. */
  NEAR_LOSSLESS(0, 0),

  /**
   * At most 2.5 bits: key channels of 2, 4 or 16 bits by what queries make of them, values from a codebook at 1 bit. Keys come
   * after RoPE.
   */
  BALANCED(0, 1),

  /** At most 1.5 bits: keys and values from codebooks. Keys come before RoPE. */
  SMALLEST(0.95, 0.9375);

  /** What a code (a, b) of a key's stage takes with {@link #ENTRIES} entries. */
  private static final double STAGE_BITS = 12;

  static final int ENTRIES = 64;
  private static final int CODES_STEP = 16;
  private static final double BALANCED_KEY_BITS = 2.5;
  private static final int NEAR_LOSSLESS_BITS = 4;

  private final double keyCodebookBits;
  private final double valueCodebookBits;

  Preset(double keyCodebookBits, double valueCodebookBits) {
    this.keyCodebookBits = keyCodebookBits;
    this.valueCodebookBits = valueCodebookBits;
  }

  /**
   * Whether it needs codebooks.
   *
   * @return false for those that {@link #method()} gives
   */
  public boolean trained() {
    return valueCodebookBits > 0;
  }

  /**
   * The stages that key codebooks must have at least; more of them are not used.
   *
   * @param headDim channels of a head
   * @return 0 if keys need none
   */
  public int keyStages(int headDim) {
    return keyCodebookBits == 0 ? 0 : (int) Math.max(1, Math.floor(keyCodebookBits * headDim / STAGE_BITS));
  }

  /**
   * The rows that value codebooks must have.
   *
   * @param width kv heads times channels
   * @return 0 if values need none
   */
  public int valueCodes(int width) {
    return (int) Math.ceil(valueCodebookBits * width / CODES_STEP) * CODES_STEP;
  }

  /**
   * The method, for presets without codebooks.
   *
   * @return the method
   * @throws IllegalStateException if the preset needs codebooks
   */
  public KvMethod method() {
    if (trained()) {
      throw new IllegalStateException(this + " needs codebooks: see PresetTrainer");
    }
    return mixed(NEAR_LOSSLESS_BITS, Uniform.bits(NEAR_LOSSLESS_BITS));
  }

  /**
   * The method with the codebooks of a profile.
   *
   * @param profile a profile; presets without codebooks take any
   * @param rope of the model
   * @return the method
   * @throws IllegalArgumentException if a layer has no codebook, or one for other bits than the preset's
   */
  public KvMethod method(Profile profile, Rope rope) {
    return method(profile.codebooks(), rope);
  }

  /**
   * The method with codebooks.
   *
   * @param codebooks of every layer, from {@link PresetTrainer}; presets without codebooks take any
   * @param rope of the model
   * @return the method
   * @throws IllegalArgumentException if a layer has no codebook, or one for other bits than the preset's
   */
  public KvMethod method(CommVqCodebooks codebooks, Rope rope) {
    if (!trained()) {
      return method();
    }
    CommVq trained = CommVq.of(own(codebooks), rope);
    if (keyCodebookBits > 0) {
      return trained;
    }
    return mixed(BALANCED_KEY_BITS, trained);
  }

  /** One group of each channel for all tokens of a page costs the least in parameters. */
  private static KvMethod mixed(double keyBits, KvMethod values) {
    return Mixed.of(MixKvq.budget(keyBits).keyGroup(KvCache.PAGE_TOKENS), values);
  }

  /** Of all that the codebooks hold, what this preset uses. */
  private CommVqCodebooks own(CommVqCodebooks codebooks) {
    KvGeometry geometry = codebooks.geometry();
    CommVqCodebooks.Builder own = CommVqCodebooks.builder(geometry);
    for (int layer = 0; layer < geometry.layers(); layer++) {
      int stages = keyStages(geometry.headDim(layer));
      if (stages > 0) {
        KeyCodebook keys = codebooks.keys(layer).orElse(null);
        require(keys != null && keys.stages() >= stages, layer, "key codebook of " + stages + " stages or more", keys);
        own.keys(layer, keys.first(stages));
      }
      int codes = valueCodes(geometry.rowSize(layer));
      ValueCodebook values = codebooks.values(layer).orElse(null);
      require(values != null && values.codes() == codes, layer, "value codebook of " + codes + " rows", values);
      own.values(layer, values);
    }
    return own.build();
  }

  private void require(boolean good, int layer, String wanted, @Nullable Object found) {
    Checks.require(
        good, this + " wants a " + wanted + " for layer " + layer + "; there is " + (found == null ? "none" : found));
  }
}
