package dev.kvasir.preset;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.AnyMethod;
import dev.kvasir.CodecChoice;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.Testing;
import dev.kvasir.calibrate.KeyScaling;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.calibrate.ProfileException;
import dev.kvasir.calibrate.SpectralCalibrator;
import dev.kvasir.calibrate.SpectralLosses;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.method.CommVq;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.Mixed;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.Uniform;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.training.KeyTrainer;
import dev.kvasir.training.ValueFitter;
import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Presets and the mixtures that they are made of: what they promise of bits, and what they refuse. */
class PresetTest {

  private static final int D = 128;
  private static final int HEADS = 2;
  private static final int ROW = HEADS * D;
  private static final int TRAINING = 512;
  private static final int CONTEXT = 4096;
  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(4).kvHeads(HEADS).headDim(D).build();
  private static final Rope ROPE = Rope.plain(RopePairs.HALVES, 10000, D);

  /** Rows with most of their variance in few directions, as those of models have. */
  private static float[] lowRank(Random random, int tokens) {
    float[] basis = Testing.gaussian(random, 6 * ROW);
    float[] rows = new float[tokens * ROW];
    for (int t = 0; t < tokens; t++) {
      float[] factors = Testing.gaussian(random, 6);
      for (int c = 0; c < ROW; c++) {
        for (int i = 0; i < factors.length; i++) {
          rows[t * ROW + c] += factors[i] * basis[i * ROW + c];
        }
      }
    }
    return rows;
  }

  /** CommVQ at about a bit. */
  private static CommVq trained(Random random) {
    try (KeyTrainer keys = KeyTrainer.builder(HEADS, D).pairs(RopePairs.HALVES).stages(10).steps(2).build();
        ValueFitter values = ValueFitter.of(ROW, ROW, 2)) {
      keys.add(lowRank(random, TRAINING), TRAINING);
      values.add(lowRank(random, TRAINING), TRAINING);
      return CommVq.of(
          CommVqCodebooks.builder(GEOMETRY)
              .keys(0, keys.train(progress -> {}))
              .values(0, values.train(progress -> {}))
              .build(),
          ROPE);
    }
  }

  private static Profile profile(Random random) {
    SpectralCalibrator calibrator = new SpectralCalibrator(GEOMETRY);
    calibrator.addQueries(0, Testing.gaussian(random, 4 * D * TRAINING), TRAINING);
    for (Side side : Side.values()) {
      calibrator.addRows(0, side, lowRank(random, TRAINING), TRAINING);
    }
    return Profile.builder(GEOMETRY).spectral(calibrator.bases(), SpectralLosses.equal(GEOMETRY)).build();
  }

  private static double pageBits(KvMethod method, Random random) {
    try (KvCache cache = Testing.cache(GEOMETRY).method(method).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, lowRank(random, CONTEXT), lowRank(random, CONTEXT), CONTEXT);
      return cache.stats().total().pageBitsPerElement();
    }
  }

  @Test
  void bitsAreWhatThePresetsPromise() {
    Random random = Testing.random("bits");
    Profile profile = profile(random);
    Map<Preset, Double> most = Map.of(Preset.NEAR_LOSSLESS, 3.5, Preset.BALANCED, 2.5, Preset.SMALLEST, 1.75);
    for (Preset preset : Preset.values()) {
      KvMethod method = preset.method(profile);
      double bits = pageBits(method, random);
      assertTrue(bits <= most.get(preset), preset + " takes " + bits);
      // And no bits are left lying about.
      assertTrue(bits > most.get(preset) - 0.35, preset + " takes only " + bits);
      assertTrue(method.codebookBytes() > 0);
    }
    assertEquals(4.25, pageBits(Preset.NEAR_LOSSLESS.method(), random), 0.01);
    assertEquals(0, Preset.NEAR_LOSSLESS.method().codebookBytes());
  }

  /** What knows nothing of the model must not be garbage on it: there is a safe form, or none. */
  @Test
  void presetsWithoutAProfileAreSafeOrRefused() {
    for (Preset preset : List.of(Preset.BALANCED, Preset.SMALLEST)) {
      assertTrue(preset.calibrated());
      assertNames(assertThrows(IllegalStateException.class, preset::method), preset, "calibrate", "spectral");
    }
    assertFalse(Preset.NEAR_LOSSLESS.calibrated());
    assertEquals(Uniform.bits(4), Preset.NEAR_LOSSLESS.method());
    Profile empty = Profile.builder(GEOMETRY).build();
    for (Preset preset : Preset.values()) {
      assertNames(assertThrows(ProfileException.class, () -> preset.method(empty)), "bases", "calibrate");
    }
  }

  @Test
  void aProfileServesAllPresetsAfterItWasSaved(@TempDir Path folder) throws IOException {
    Random random = Testing.random("profile");
    Profile profile = profile(random);
    Path file = folder.resolve("spectral.profile");
    profile.save(file);
    float[] keys = lowRank(random, 256);
    float[] values = lowRank(random, 256);
    for (Preset preset : Preset.values()) {
      KvMethod loaded = preset.method(Profile.load(file, GEOMETRY));
      for (Side side : Side.values()) {
        assertArrayEquals(decoded(preset.method(profile), keys, values, side), decoded(loaded, keys, values, side));
      }
    }
  }

  private static float[] decoded(KvMethod method, float[] keys, float[] values, Side side) {
    try (KvCache cache = Testing.cache(GEOMETRY).method(method).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, keys, values, 256);
      return sequence.read(0, side, 0, 256);
    }
  }

  /** Each side of a mixture is stored as by the method that it came from alone. */
  @Test
  void aMixtureHasTheKeysOfOneAndTheValuesOfTheOther() {
    Random random = Testing.random("mixed");
    KvMethod trained = trained(random);
    float[] keys = lowRank(random, 256);
    float[] values = lowRank(random, 256);
    for (KvMethod method : new KvMethod[] {Uniform.bits(2), MixKvq.budget(2.7), trained}) {
      for (KvMethod other : new KvMethod[] {PatternKv.bits(2), Uniform.bits(3), trained}) {
        if (other instanceof PatternKv && Testing.onDevice()) {
          continue; // alone its patterns are mined by the device, whose sums are in another order than this machine's
        }
        KvMethod mixed = Mixed.of(method, other);
        assertArrayEquals(decoded(method, keys, values, Side.KEYS), decoded(mixed, keys, values, Side.KEYS));
        assertArrayEquals(decoded(other, keys, values, Side.VALUES), decoded(mixed, keys, values, Side.VALUES));
        assertEquals(method.keysBeforeRope(), mixed.keysBeforeRope());
        assertEquals(method.name() + "+" + other.name(), mixed.name());
      }
    }
    Mixed kept = Mixed.of(Uniform.bits(2).window(5).sinks(1), Uniform.bits(1).window(3).sinks(2));
    assertEquals(5, kept.window());
    assertEquals(2, kept.sinks());
    assertThrows(IllegalArgumentException.class, () -> kept.sinks(-1));
  }

  /** Codebooks weigh what is used of them: keys of one method, values of another. */
  @Test
  void codebooksOfAMixtureCountOnceForTheirSide() {
    Random random = Testing.random("weights");
    KvMethod trained = trained(random);
    long keys = Mixed.of(trained, Uniform.bits(2)).codebookBytes();
    long values = Mixed.of(Uniform.bits(2), trained).codebookBytes();
    assertTrue(keys > 0 && values > 0);
    assertEquals(trained.codebookBytes(), keys + values);
    assertEquals(0, Mixed.of(Uniform.bits(2), Uniform.bits(4)).codebookBytes());
  }

  /** Scaling keys leaves the values with their codebook; codebooks of keys do not know it, and say so. */
  @Test
  void keysOfMixturesAreScaled() {
    Random random = Testing.random("scaled");
    float[] factors = new float[ROW];
    for (int i = 0; i < ROW; i++) {
      factors[i] = 1 + i % (D / 2) / 8f;
    }
    KeyScaling scaling = KeyScaling.of(GEOMETRY, RopePairs.HALVES, List.of(factors));
    KvMethod balanced = Mixed.of(MixKvq.budget(2.5).keyGroup(KvCache.PAGE_TOKENS), trained(random));
    KvMethod scaled = scaling.applyTo(balanced);
    assertEquals(balanced.codebookBytes(), scaled.codebookBytes());
    float[] keys = lowRank(random, 256);
    float[] values = lowRank(random, 256);
    assertArrayEquals(decoded(balanced, keys, values, Side.VALUES), decoded(scaled, keys, values, Side.VALUES));
    Mixed parts = (Mixed) balanced;
    KvMethod expected = Mixed.of(scaling.applyTo(parts.keyMethod()), parts.valueMethod());
    assertArrayEquals(decoded(expected, keys, values, Side.KEYS), decoded(scaled, keys, values, Side.KEYS));
    KvMethod smallest = trained(random);
    assertNames(
        assertThrows(IllegalArgumentException.class, () -> scaling.applyTo(smallest)), smallest.name(), "codebooks");
    decoded(Mixed.of(scaling.applyTo(Uniform.bits(4)), smallest), keys, values, Side.VALUES);
  }

  /** Methods of one's own: codecs that need a codebook are refused without one, in words of this API. */
  @Test
  void aCodecWithoutItsCodebookIsRefused() {
    KvMethod bare = new AnyMethod(CodecChoice.of("commvq", 1), 0, 0);
    IllegalArgumentException e =
        assertThrows(IllegalArgumentException.class, () -> Testing.cache(GEOMETRY).method(bare).build());
    assertNames(e, "layer 0", "KEYS", "commvq", "codebook");
    assertFalse(e.getMessage().contains("set_"), e.getMessage());
  }

  private static float[] ones() {
    float[] factors = new float[ROW];
    Arrays.fill(factors, 1);
    return factors;
  }

  /** A method that wraps another forgets nothing of it. */
  @Test
  void wrappersAnswerForAllThatAMethodSays() throws ReflectiveOperationException {
    KeyScaling scaling = KeyScaling.of(GEOMETRY, RopePairs.HALVES, List.of(ones()));
    for (Class<?> wrapper : List.of(scaling.applyTo(Uniform.bits(2)).getClass(), Mixed.class)) {
      for (Method method : KvMethod.class.getMethods()) {
        boolean derived = method.getName().equals("codebookBytes") && method.getParameterCount() == 0;
        Class<?> owner = wrapper.getMethod(method.getName(), method.getParameterTypes()).getDeclaringClass();
        assertEquals(derived ? KvMethod.class : wrapper, owner, method.toString());
      }
    }
  }
}
