package dev.kvasir.preset;

import dev.kvasir.KvMethod;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.calibrate.ProfileException;
import dev.kvasir.method.Spectral;
import dev.kvasir.method.Uniform;

/**
 * The best quality at so many bits: recipes that were chosen by measuring. What each keeps of real models is in docs/lab.md.
 *
 * <pre>{@code
 * KvMethod method = Preset.BALANCED.method(Profile.load(path, geometry));
 * KvCache cache = KvCache.builder(geometry).method(method).build();
 * }</pre>
 *
 * <p>All of them are {@link Spectral}, which knows the model: a profile comes from a few thousand tokens of any text that the
 * model reads once ({@code kvasir calibrate MODEL --method spectral}, or {@code SpectralCalibrator} in an engine of one's own),
 * and one profile serves all presets. Without one there is no guessing: {@link #NEAR_LOSSLESS} has a form that knows nothing
 * of the model and takes a bit more, the others refuse.
 */
public enum Preset {

  /** Next to no loss: 3 code bits, at most 3.5 bits of pages. */
  NEAR_LOSSLESS(3),

  /** 2 code bits, at most 2.5 bits of pages. */
  BALANCED(2),

  /** 1.25 code bits, at most 1.75 bits of pages: for texts much longer than memory. Exact answers begin to suffer. */
  SMALLEST(1.25);

  /** Where nothing is known of a model: fewer lose too much on some of them. */
  private static final int UNCALIBRATED_BITS = 4;

  private final double codeBits;

  Preset(double codeBits) {
    this.codeBits = codeBits;
  }

  /**
   * Code bits of an element, on average over a model's layers; norms, steps and widths come on top: 0.22 bits for heads of 128
   * channels, 0.31 for 64.
   *
   * @return the bits
   */
  public double codeBits() {
    return codeBits;
  }

  /**
   * Whether there is no form of it without a profile.
   *
   * @return true for those that {@link #method()} refuses
   */
  public boolean calibrated() {
    return this != NEAR_LOSSLESS;
  }

  /**
   * The method by what was learned of the model.
   *
   * @param profile with bases of Spectral
   * @return the method
   * @throws ProfileException if the profile has no bases
   */
  public Spectral method(Profile profile) {
    return profile.spectral(codeBits);
  }

  /**
   * The method where nothing is known of the model: uniform codes of 4 bits, 4.25 of pages for heads of 128 channels.
   *
   * @return the method
   * @throws IllegalStateException if the preset needs a profile
   */
  public KvMethod method() {
    if (calibrated()) {
      throw new IllegalStateException(
          this + " needs a profile of the model: kvasir calibrate MODEL --method spectral, or SpectralCalibrator");
    }
    return Uniform.bits(UNCALIBRATED_BITS);
  }
}
