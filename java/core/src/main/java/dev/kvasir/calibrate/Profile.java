package dev.kvasir.calibrate;

import dev.kvasir.KvGeometry;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.internal.Checks;
import dev.kvasir.method.Spectral;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Collections;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * The calibration results of one model, and their file.
 *
 * <pre>{@code
 * Profile.builder(geometry).keyScaling(scaling).plan(plan).note("text", "wiki").build().save(path);
 * Profile profile = Profile.load(path, geometry);
 * }</pre>
 *
 * <p>The file is a safetensors file. Its metadata say that it is a profile, of which version, of which geometry, what
 * it holds, and a checksum over all of that and the data. Besides the sections that Kvasir knows, it may hold any
 * tensors by name. A method that finds in it what it needs uses it; what is missing is not an error here.
 */
public final class Profile {

  /** The version of the file format that is written, and the only one that is read. */
  public static final int VERSION = 1;

  private final KvGeometry geometry;
  private final @Nullable KeyScaling keyScaling;
  private final @Nullable Sensitivities sensitivities;
  private final @Nullable BitPlan plan;
  private final Map<String, Tensor> tensors;
  private final Map<String, String> notes;

  private Profile(Builder builder) {
    this.geometry = builder.geometry;
    this.keyScaling = builder.keyScaling;
    this.sensitivities = builder.sensitivities;
    this.plan = builder.plan;
    this.tensors = Collections.unmodifiableMap(new TreeMap<>(builder.tensors));
    this.notes = Collections.unmodifiableMap(new TreeMap<>(builder.notes));
  }

  /**
   * A builder of a profile that holds nothing yet.
   *
   * @param geometry the model; sliding windows and softmax scales do not matter
   * @return a new builder
   */
  public static Builder builder(KvGeometry geometry) {
    return new Builder(geometry);
  }

  /**
   * Loads the profile of a model.
   *
   * @param path the file
   * @param geometry the model
   * @return the profile
   * @throws ProfileException if the file is no profile, damaged, of another version or of another geometry
   * @throws IOException if it cannot be read
   */
  public static Profile load(Path path, KvGeometry geometry) throws IOException {
    Profile profile = load(path);
    String difference = ProfileFormat.difference(profile.geometry, geometry);
    if (difference != null) {
      throw new ProfileException(path + " is the profile of another model: " + difference, null);
    }
    return profile;
  }

  /**
   * Loads a profile of whatever model, to look at it.
   *
   * @param path the file
   * @return the profile
   * @throws ProfileException if the file is no profile, damaged or of another version
   * @throws IOException if it cannot be read
   */
  public static Profile load(Path path) throws IOException {
    return ProfileFormat.load(path);
  }

  /**
   * Saves the profile. A file that exists is replaced at once or not at all.
   *
   * @param path the file
   * @throws IOException if it cannot be written
   */
  public void save(Path path) throws IOException {
    ProfileFormat.save(this, path);
  }

  /**
   * The heads and channels of the model, without sliding windows and softmax scales of its own where it was loaded.
   *
   * @return the geometry
   */
  public KvGeometry geometry() {
    return geometry;
  }

  /**
   * The scaling of keys.
   *
   * @return the scaling, if the profile has one
   */
  public Optional<KeyScaling> keyScaling() {
    return Optional.ofNullable(keyScaling);
  }

  /**
   * The sensitivities of the layers.
   *
   * @return the sensitivities, if the profile has them
   */
  public Optional<Sensitivities> sensitivities() {
    return Optional.ofNullable(sensitivities);
  }

  /**
   * The widths of the layers.
   *
   * @return the plan, if the profile has one
   */
  public Optional<BitPlan> plan() {
    return Optional.ofNullable(plan);
  }

  /**
   * The codebooks of CommVQ.
   *
   * @return the codebooks; none if the profile has none
   * @throws ProfileException if they do not make sense or are not for the profile's geometry
   */
  public CommVqCodebooks codebooks() {
    try {
      return CommVqCodebooks.of(geometry, tensors);
    } catch (IllegalArgumentException e) {
      throw new ProfileException("the profile's codebooks make no sense: " + e.getMessage(), e);
    }
  }

  /**
   * The bases of Spectral.
   *
   * @return the bases; none if the profile has none
   * @throws ProfileException if they are not for the profile's geometry
   */
  public SpectralBases bases() {
    try {
      return SpectralBases.of(geometry, tensors);
    } catch (IllegalArgumentException e) {
      throw new ProfileException("the profile's bases make no sense: " + e.getMessage(), e);
    }
  }

  /**
   * Spectral by the profile's bases, with more bits for the layers that need them where the profile knows which do.
   *
   * @param bits code bits of an element, on average
   * @return the method
   * @throws ProfileException if the profile has no bases, or they make no sense
   * @throws IllegalArgumentException if the bits are not within 0.25..8
   */
  public Spectral spectral(double bits) {
    SpectralBases bases = bases();
    if (bases.isEmpty()) {
      throw new ProfileException("the profile has no bases: calibrate for Spectral first", null);
    }
    SpectralLosses losses;
    try {
      losses = SpectralLosses.of(geometry, tensors).orElse(SpectralLosses.equal(geometry));
    } catch (IllegalArgumentException e) {
      throw new ProfileException("the profile's losses make no sense: " + e.getMessage(), e);
    }
    return losses.plan(bases, bits);
  }

  /**
   * Other tensors.
   *
   * @return tensors by name, unmodifiable
   */
  public Map<String, Tensor> tensors() {
    return tensors;
  }

  /**
   * Notes of whoever made the profile.
   *
   * @return texts by name, unmodifiable
   */
  public Map<String, String> notes() {
    return notes;
  }

  /**
   * A builder that starts with everything that this profile holds.
   *
   * @return a new builder
   */
  public Builder toBuilder() {
    Builder builder = new Builder(geometry);
    builder.keyScaling = keyScaling;
    builder.sensitivities = sensitivities;
    builder.plan = plan;
    builder.tensors.putAll(tensors);
    builder.notes.putAll(notes);
    return builder;
  }

  @Override
  public String toString() {
    return "Profile[" + geometry + ", holds " + ProfileFormat.sections(this) + "]";
  }

  /** What a profile is to hold. Not for use by several threads. */
  public static final class Builder {

    private final KvGeometry geometry;
    private final Map<String, Tensor> tensors = new TreeMap<>();
    private final Map<String, String> notes = new TreeMap<>();
    private @Nullable KeyScaling keyScaling;
    private @Nullable Sensitivities sensitivities;
    private @Nullable BitPlan plan;

    private Builder(KvGeometry geometry) {
      this.geometry = geometry;
    }

    /**
     * The scaling of keys.
     *
     * @param scaling of this model
     * @return this builder
     * @throws IllegalArgumentException if it is for another geometry
     */
    public Builder keyScaling(KeyScaling scaling) {
      scaling.requireGeometry(geometry);
      keyScaling = scaling;
      return this;
    }

    /**
     * The sensitivities of the layers.
     *
     * @param sensitivities of this model
     * @return this builder
     * @throws IllegalArgumentException if they are for another number of layers
     */
    public Builder sensitivities(Sensitivities sensitivities) {
      requireLayers("sensitivities", sensitivities.layers());
      this.sensitivities = sensitivities;
      return this;
    }

    /**
     * The widths of the layers.
     *
     * @param plan for this model
     * @return this builder
     * @throws IllegalArgumentException if it is for another number of layers
     */
    public Builder plan(BitPlan plan) {
      requireLayers("a plan", plan.layers());
      this.plan = plan;
      return this;
    }

    /**
     * The codebooks of CommVQ, which are kept as tensors.
     *
     * @param codebooks for this model
     * @return this builder
     */
    public Builder codebooks(CommVqCodebooks codebooks) {
      codebooks.tensors().forEach(this::tensor);
      return this;
    }

    /**
     * The bases of Spectral, which are kept as tensors.
     *
     * @param bases for this model
     * @param losses what its layers lose
     * @return this builder
     */
    public Builder spectral(SpectralBases bases, SpectralLosses losses) {
      bases.tensors().forEach(this::tensor);
      losses.tensors().forEach(this::tensor);
      return this;
    }

    /**
     * Any other tensor.
     *
     * @param name its name; names that begin like those of the sections above are refused
     * @param tensor the tensor
     * @return this builder
     * @throws IllegalArgumentException if the name is empty or reserved
     */
    public Builder tensor(String name, Tensor tensor) {
      ProfileFormat.requireFreeName(name);
      tensors.put(name, Objects.requireNonNull(tensor, "tensor"));
      return this;
    }

    /**
     * A note: where the samples came from, who made the profile, and so on.
     *
     * @param name its name; names that begin with {@code kvasir.} are refused
     * @param text the note
     * @return this builder
     * @throws IllegalArgumentException if the name is empty or reserved
     */
    public Builder note(String name, String text) {
      ProfileFormat.requireFreeNote(name);
      notes.put(name, Objects.requireNonNull(text, "text"));
      return this;
    }

    /**
     * The profile.
     *
     * @return a new profile
     */
    public Profile build() {
      return new Profile(this);
    }

    private void requireLayers(String what, int layers) {
      Checks.require(
          layers == geometry.layers(), what + " of " + layers + " layers for a model of " + geometry.layers());
    }
  }
}
