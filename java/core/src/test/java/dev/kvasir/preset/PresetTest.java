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
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.Mixed;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.Uniform;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
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

  private static CommVqCodebooks train(Preset preset, Random random) {
    PresetTrainer trainer = PresetTrainer.of(preset, GEOMETRY, RopePairs.HALVES).steps(2, 2);
    trainer.train(0, lowRank(random, TRAINING), lowRank(random, TRAINING), TRAINING, progress -> {});
    return trainer.codebooks();
  }

  private static double bits(KvMethod method, Random random) {
    try (KvCache cache = Testing.cache(GEOMETRY).method(method).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, lowRank(random, CONTEXT), lowRank(random, CONTEXT), CONTEXT);
      return cache.stats().total().bitsPerElement();
    }
  }

  @Test
  void bitsAreWhatThePresetsPromise() {
    Random random = Testing.random("bits");
    for (Preset preset : Preset.values()) {
      KvMethod method = preset.trained() ? preset.method(train(preset, random), ROPE) : preset.method();
      double most = preset == Preset.SMALLEST ? 1.5 : preset == Preset.BALANCED ? 2.5 : 5;
      double bits = bits(method, random);
      // 16-bit rows lie in blocks of 16 tokens: of the sinks' one, the others are room.
      double block = 16.0 * (16 - method.sinks()) / 4096;
      assertTrue(bits <= most + block, preset + " takes " + bits);
      // And no bits are left lying about.
      assertTrue(bits > most - 0.35, preset + " takes only " + bits);
      assertEquals(preset.trained(), method.codebookBytes() > 0);
    }
  }

  @Test
  void codebooksSurviveAProfileAndOneOfMoreStagesServesToo(@TempDir Path folder) throws IOException {
    Random random = Testing.random("profile");
    CommVqCodebooks trained = train(Preset.SMALLEST, random);
    Path file = folder.resolve("smallest.profile");
    Profile.builder(GEOMETRY).codebooks(trained).build().save(file);
    KvMethod loaded = Preset.SMALLEST.method(Profile.load(file, GEOMETRY), ROPE);
    KvMethod direct = Preset.SMALLEST.method(trained, ROPE);
    assertTrue(loaded.keysBeforeRope());
    float[] keys = lowRank(random, 256);
    float[] values = lowRank(random, 256);
    assertArrayEquals(decoded(direct, keys, values, Side.KEYS), decoded(loaded, keys, values, Side.KEYS));
    assertArrayEquals(decoded(direct, keys, values, Side.VALUES), decoded(loaded, keys, values, Side.VALUES));
    int stages = Preset.SMALLEST.keyStages(D);
    assertEquals(stages, trained.keys(0).orElseThrow().stages());
    assertEquals(2 * HEADS * stages * 64L * D + Preset.SMALLEST.valueCodes(ROW) * (2L * ROW + 4), direct.codebookBytes());
  }

  private static float[] decoded(KvMethod method, float[] keys, float[] values, Side side) {
    try (KvCache cache = Testing.cache(GEOMETRY).method(method).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, keys, values, 256);
      return sequence.read(0, side, 0, 256);
    }
  }

  @Test
  void codebooksThatDoNotFitAreRefused() {
    Random random = Testing.random("refused");
    CommVqCodebooks none = CommVqCodebooks.builder(GEOMETRY).build();
    assertNames(
        assertThrows(IllegalArgumentException.class, () -> Preset.SMALLEST.method(none, ROPE)),
        "SMALLEST", "key codebook", "layer 0");
    CommVqCodebooks balanced = train(Preset.BALANCED, random);
    assertFalse(balanced.keys(0).isPresent());
    assertThrows(IllegalArgumentException.class, () -> Preset.SMALLEST.method(balanced, ROPE));
    CommVqCodebooks other =
        CommVqCodebooks.builder(GEOMETRY).values(0, train(Preset.SMALLEST, random).values(0).orElseThrow()).build();
    assertNames(
        assertThrows(IllegalArgumentException.class, () -> Preset.BALANCED.method(other, ROPE)),
        "BALANCED", Preset.BALANCED.valueCodes(ROW));
    assertThrows(IllegalStateException.class, Preset.BALANCED::method);
    assertThrows(
        IllegalArgumentException.class, () -> PresetTrainer.of(Preset.NEAR_LOSSLESS, GEOMETRY, RopePairs.HALVES));
    assertThrows(
        IllegalArgumentException.class,
        () ->
            PresetTrainer.of(Preset.SMALLEST, GEOMETRY, RopePairs.HALVES)
                .train(0, null, new float[ROW * TRAINING], TRAINING, progress -> {}));
  }

  /** Each side of a mixture is stored as by the method that it came from alone. */
  @Test
  void aMixtureHasTheKeysOfOneAndTheValuesOfTheOther() {
    Random random = Testing.random("mixed");
    KvMethod trained = Preset.SMALLEST.method(train(Preset.SMALLEST, random), ROPE);
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
    KvMethod trained = Preset.SMALLEST.method(train(Preset.SMALLEST, random), ROPE);
    long keys = Mixed.of(trained, Uniform.bits(2)).codebookBytes();
    long values = Mixed.of(Uniform.bits(2), trained).codebookBytes();
    assertTrue(keys > 0 && values > 0);
    assertEquals(trained.codebookBytes(), keys + values);
    assertEquals(0, Mixed.of(Uniform.bits(2), Uniform.bits(4)).codebookBytes());
  }

  /** Scaling keys leaves the values with their codebook; codebooks of keys do not know it, and say so. */
  @Test
  void keysOfPresetsAreScaled() {
    Random random = Testing.random("scaled");
    float[] factors = new float[ROW];
    for (int i = 0; i < ROW; i++) {
      factors[i] = 1 + i % (D / 2) / 8f;
    }
    KeyScaling scaling = KeyScaling.of(GEOMETRY, RopePairs.HALVES, List.of(factors));
    KvMethod balanced = Preset.BALANCED.method(train(Preset.BALANCED, random), ROPE);
    KvMethod scaled = scaling.applyTo(balanced);
    assertEquals(balanced.codebookBytes(), scaled.codebookBytes());
    float[] keys = lowRank(random, 256);
    float[] values = lowRank(random, 256);
    assertArrayEquals(decoded(balanced, keys, values, Side.VALUES), decoded(scaled, keys, values, Side.VALUES));
    Mixed parts = (Mixed) balanced;
    KvMethod expected = Mixed.of(scaling.applyTo(parts.keyMethod()), parts.valueMethod());
    assertArrayEquals(decoded(expected, keys, values, Side.KEYS), decoded(scaled, keys, values, Side.KEYS));
    KvMethod smallest = Preset.SMALLEST.method(train(Preset.SMALLEST, random), ROPE);
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
