package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.AnyMethod;
import dev.kvasir.CodecChoice;
import dev.kvasir.KvCache;
import dev.kvasir.KvEstimate;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Need;
import dev.kvasir.Rows;
import dev.kvasir.Side;
import dev.kvasir.Testing;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.codebook.KeyCodebook;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.codebook.ValueCodebook;
import dev.kvasir.method.CommVq;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.Mixed;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Spectral;
import dev.kvasir.method.Uniform;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.lang.ref.Reference;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Estimates are what a cache then holds, to the byte, whatever the method and the shape. */
class KvEstimateTest {

  private static final int ROUNDS = 6;

  private final Random random = Testing.random("KvEstimateTest");

  /** What a sequence goes through: a prompt, then tokens one by one. */
  private record Story(KvGeometry geometry, KvMethod method, int prompt, int decoded, int sequences) {

    KvEstimate estimate() {
      return KvEstimate.of(geometry, method, prompt, decoded, sequences);
    }

    @Override
    public String toString() {
      List<String> layers = new ArrayList<>();
      for (int i = 0; i < geometry.layers(); i++) {
        layers.add(geometry.kvHeads(i) + "x" + geometry.headDim(i) + (geometry.latent(i) ? " latent" : "")
            + " window " + geometry.slidingWindow(i) + " of " + geometry.source(i));
      }
      return method.name() + " sinks " + method.sinks() + " window " + method.window() + ", " + layers + ", " + prompt
          + " + " + decoded + " tokens, " + sequences + " sequences";
    }
  }

  /** Two or three layers that differ; of them one may slide, and the last may read the first one's rows. */
  private KvGeometry geometry(boolean latent) {
    int layers = 2 + random.nextInt(2);
    KvGeometry.Builder builder = KvGeometry.builder().layers(layers);
    for (int i = 0; i < layers; i++) {
      int kvHeads = 1 + random.nextInt(3);
      builder.kvHeads(i, kvHeads).queryHeads(i, 2 * kvHeads).headDim(i, 32 * (1 + random.nextInt(3)));
    }
    if (latent && layers == 3) {
      builder.kvHeads(1, 1).queryHeads(1, 3).latent(1, 64 * (1 + random.nextInt(3)), 48);
    }
    if (random.nextBoolean()) {
      builder.slidingWindow(1, 1 + random.nextInt(300));
    }
    if (random.nextBoolean()) {
      // Of one shape with the layer whose rows they are.
      for (int layer : new int[] {0, layers - 1}) {
        builder.kvHeads(layer, 2).queryHeads(layer, 4).headDim(layer, 64).slidingWindow(layer, 0);
      }
      builder.source(layers - 1, 0);
    }
    return builder.build();
  }

  private Story story(KvGeometry geometry, KvMethod method) {
    int prompt = random.nextInt(4) == 0 ? random.nextInt(20) : random.nextInt(700);
    int decoded = random.nextInt(3) == 0 ? 1 : random.nextInt(300);
    return new Story(geometry, method, prompt, prompt + decoded == 0 ? 1 : decoded, 1 + random.nextInt(2));
  }

  /** What a cache says after that. */
  private KvStats live(Story story) {
    return live(story, 0);
  }

  private KvStats live(Story story, long budget) {
    KvCache.Builder builder = Testing.cache(story.geometry()).method(story.method());
    if (story.method().needs().contains(Need.KEYS_BEFORE_ROPE)) {
      builder.keysBeforeRope(true);
    }
    if (budget > 0) {
      builder.budgetBytes(budget);
    }
    List<KvSequence> sequences = new ArrayList<>();
    try (KvCache cache = builder.build()) {
      for (int s = 0; s < story.sequences(); s++) {
        KvSequence sequence = cache.newSequence();
        sequences.add(sequence);
        int[] appends = new int[1 + story.decoded()];
        Arrays.fill(appends, 1);
        appends[0] = story.prompt();
        for (int layer = 0; layer < story.geometry().layers(); layer++) {
          grow(cache, sequence, story.geometry(), layer, appends);
        }
      }
      return cache.stats();
    } finally {
      Reference.reachabilityFence(sequences); // a sequence that nobody holds is given back
    }
  }

  private void grow(KvCache cache, KvSequence sequence, KvGeometry geometry, int layer, int[] appends) {
    if (geometry.source(layer) != layer) {
      return;
    }
    int row = geometry.rowSize(layer);
    boolean asked = false;
    for (int tokens : appends) {
      if (tokens == 0) {
        continue;
      }
      float[] keys = Testing.gaussian(random, tokens * row);
      if (geometry.latent(layer)) {
        sequence.append(layer, Rows.of(keys), tokens);
      } else {
        sequence.append(layer, keys, keys, tokens);
      }
      if (!asked) {
        float[] query = Testing.gaussian(random, geometry.querySize(layer));
        cache.attend(layer, List.of(sequence), query, new float[geometry.outputSize(layer)]);
        asked = true;
      }
    }
  }

  private void assertExact(Story story) {
    KvEstimate estimate = story.estimate();
    KvStats stats = live(story);
    assertEquals(stats.bytes(), estimate.total().bytes(), story::toString);
    assertEquals(stats.layers().size(), estimate.layers().size());
    for (int i = 0; i < stats.layers().size(); i++) {
      assertSame(stats.layers().get(i), estimate.layers().get(i), "layer " + i + " of " + story);
    }
    assertSame(stats.total(), estimate.total(), story.toString());
  }

  private static void assertSame(KvStats.Layer held, KvEstimate.Layer layer, String where) {
    assertEquals(held.bytes(), layer.bytes(), where);
    assertEquals(held.pages(), layer.pages(), where);
    assertEquals(held.pageBytes(), layer.pageBytes(), where);
    assertEquals(held.windowBytes(), layer.windowBytes(), where);
    assertEquals(held.tableBytes(), layer.tableBytes(), where);
    assertEquals(held.codebookBytes(), layer.codebookBytes(), where);
    assertEquals(held.bitsPerElement(), layer.bitsPerElement(), 1e-9, where);
  }

  private int sinks() {
    return random.nextBoolean() ? 4 : random.nextInt(150);
  }

  private int window() {
    return random.nextBoolean() ? 0 : random.nextInt(300);
  }

  @Test
  void isExactForMethodsOfFixedWidths() {
    for (int round = 0; round < ROUNDS; round++) {
      for (int bits : new int[] {1, 2, 3, 4, 8, 16}) {
        assertExact(story(geometry(random.nextInt(3) == 0), Uniform.bits(bits).sinks(sinks()).window(window())));
      }
      assertExact(story(geometry(random.nextInt(3) == 0), new HalfPrecision()));
      assertExact(story(geometry(false), Uniform.kivi(2)));
      assertExact(story(geometry(false), Mixed.of(Uniform.bits(4), Uniform.bits(2)).sinks(sinks()).window(window())));
    }
  }

  @Test
  void isExactWherePatternsAreAdded() {
    for (int round = 0; round < ROUNDS; round++) {
      assertExact(story(geometry(false), PatternKv.bits(1 + random.nextInt(4)).sinks(sinks()).window(window())));
      assertExact(story(geometry(false), PatternKv.bits(2).patterns(2 + random.nextInt(63)).newPatterns(false)));
    }
  }

  @Test
  void isExactForPagesThatShrinkUntilABudgetPresses() {
    for (int round = 0; round < ROUNDS; round++) {
      KvMethod method = PmKvq.floor(2 << random.nextInt(3)).sinks(sinks()).window(window());
      Story story = story(geometry(random.nextInt(3) == 0), method);
      assertExact(story);
      // Half way to the floor: somewhere between the two.
      KvEstimate.Layer total = story.estimate().total();
      if (total.pages() < 2) {
        assertEquals(total.pages() == 0 ? total.bytes() : total.leastBytes(), total.leastBytes());
        continue;
      }
      long budget = (total.bytes() + total.leastBytes()) / 2 + 200_000;
      long held = live(story, Math.min(budget, total.bytes())).bytes();
      assertTrue(held >= total.leastBytes() && held <= total.bytes(), () -> held + " of " + story);
    }
  }

  @Test
  void isExactForTrainedMethodsAndCountsTheirCodebooksOnce() {
    for (int round = 0; round < ROUNDS; round++) {
      KvGeometry geometry = KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(32).build();
      KeyCodebook keys =
          new KeyCodebook(2, 32, RopePairs.HALVES, 2, 16, Testing.gaussian(random, 2 * 2 * 16 * 32));
      float[] thresholds = new float[32];
      Arrays.fill(thresholds, 0.75f);
      ValueCodebook values = new ValueCodebook(64, 32, Testing.gaussian(random, 32 * 64), thresholds);
      CommVqCodebooks.Builder codebooks = CommVqCodebooks.builder(geometry);
      for (int layer = 0; layer < 3; layer++) {
        codebooks.keys(layer, keys).values(layer, values);
      }
      Rope rope = Rope.plain(RopePairs.HALVES, 10000, 32);
      assertExact(story(geometry, CommVq.of(codebooks.build(), rope).sinks(sinks()).window(window())));

      SpectralBases.Builder bases = SpectralBases.builder(geometry);
      float[] identity = new float[2 * 32 * 32];
      for (int head = 0; head < 2; head++) {
        for (int i = 0; i < 32; i++) {
          identity[(head * 32 + i) * 32 + i] = 1;
        }
      }
      for (int layer = 0; layer < 3; layer++) {
        bases.basis(layer, Side.KEYS, identity).basis(layer, Side.VALUES, identity);
      }
      double bits = 0.5 + random.nextDouble() * 4;
      assertExact(story(geometry, Spectral.of(bases.build(), bits).sinks(sinks()).window(window())));
      assertExact(story(geometry, Spectral.of(bases.build(), 2 + bits).floor(1).sinks(sinks())));
    }
  }

  /** Widths go by rows and queries there: all but the pages is exact, and pages are within what can be. */
  @Test
  void boundsMethodsWhosePagesGoByRows() {
    Assumptions.assumeFalse(Testing.onDevice(), "pages of this method have another layout there");
    for (int round = 0; round < ROUNDS; round++) {
      for (KvMethod method :
          List.of(
              MixKvq.budget(2 + 4 * random.nextDouble()).sinks(sinks()).window(window()),
              MixKvq.thresholds(random.nextDouble() * 3, random.nextDouble() * 2),
              MixKvq.thresholds(1.44, 0.79).mode(MixKvq.Mode.ABSOLUTE).queryAware(false),
              MixKvq.budget(16),
              MixKvq.budget(2))) {
        Story story = story(geometry(false), method);
        KvStats.Layer held = live(story).total();
        KvEstimate.Layer total = story.estimate().total();
        assertEquals(held.windowBytes(), total.windowBytes(), story::toString);
        assertEquals(held.pages(), total.pages(), story::toString);
        assertTrue(held.bytes() <= total.bytes(), () -> held.bytes() + " of " + total + " " + story);
        assertTrue(held.bytes() >= total.leastBytes(), () -> held.bytes() + " of " + total + " " + story);
        if (method.equals(MixKvq.budget(2))) {
          assertEquals(total.bytes(), total.leastBytes(), story::toString); // every channel has 2 bits
        }
      }
    }
  }

  /** The largest is no exaggeration: with a budget of 16 bits every channel takes them, but for the last steps. */
  @Test
  void largestPagesOfABudgetAreNearlyReached() {
    Assumptions.assumeFalse(Testing.onDevice(), "pages of this method have another layout there");
    KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(2).kvHeads(1).headDim(32).build();
    KvMethod method = MixKvq.budget(16);
    try (KvCache cache = Testing.cache(geometry).method(method).build();
        KvSequence sequence = cache.newSequence()) {
      float[] rows = Testing.gaussian(random, 300 * 32);
      sequence.observe(0, Testing.gaussian(random, 64), 1);
      sequence.append(0, rows, rows, 300);
      long most = KvEstimate.of(geometry, method, 300, 0, 1).total().bytes();
      assertTrue(cache.stats().bytes() <= most && cache.stats().bytes() > 0.98 * most, () -> "of " + most);
    }
  }

  @Test
  void knowsAModelOfTheWorld() {
    KvGeometry geometry = KvGeometry.builder().layers(32).queryHeads(32).kvHeads(8).headDim(128).build();
    KvEstimate f16 = KvEstimate.of(geometry, new HalfPrecision(), 32768, 64);
    assertEquals(64L * 32768 * 131072, f16.total().bytes()); // 128 KiB a token
    assertEquals(16, f16.total().bitsPerElement());
    assertEquals(f16.total().bytes(), f16.layers().stream().mapToLong(KvEstimate.Layer::bytes).sum());
    assertEquals(64, f16.sequences());
    assertEquals(32768, f16.tokens());
  }

  @Test
  void refusesWhatACacheWouldRefuse() {
    KvGeometry geometry = Testing.small();
    assertThrows(IllegalArgumentException.class, () -> KvEstimate.of(geometry, Uniform.bits(2), 0, 1));
    assertThrows(IllegalArgumentException.class, () -> KvEstimate.of(geometry, Uniform.bits(2), 5, 0));
    assertThrows(IllegalArgumentException.class, () -> KvEstimate.of(geometry, Uniform.bits(2), -1, 5, 1));
    assertThrows(
        IllegalArgumentException.class,
        () -> KvEstimate.of(geometry, new AnyMethod(CodecChoice.of("nothing", 2), 0, 0), 5, 1));
  }

  @Test
  @Timeout(60)
  void refusesWhatTakesTooLongOrFitsNoNumber() {
    KvGeometry geometry = Testing.small();
    long most = 1L << 28;
    for (long tokens : new long[] {most + 2, 1L << 40, Long.MAX_VALUE}) {
      assertThrows(IllegalArgumentException.class, () -> KvEstimate.of(geometry, Uniform.bits(2), tokens, 1));
      assertThrows(IllegalArgumentException.class, () -> KvEstimate.of(geometry, Uniform.bits(2), 0, tokens, 1));
      assertThrows(IllegalArgumentException.class, () -> KvEstimate.of(geometry, Uniform.bits(2), tokens, tokens, 1));
    }
    assertThrows(IllegalArgumentException.class, () -> KvEstimate.of(geometry, Uniform.bits(2), 5, Long.MAX_VALUE));
    assertEquals(1 << 24, KvEstimate.of(geometry, Uniform.bits(2), 1 << 24, 1).tokens());
  }
}
