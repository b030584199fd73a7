package dev.kvasir.method;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Side;
import dev.kvasir.calibrate.Profile;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.codebook.KeyCodebook;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.training.KeyTrainer;
import dev.kvasir.training.ValueFitter;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The method: trained on the fly or loaded, at its place in a cache. */
class CommVqTest {

  private static final int D = 32;
  private static final int HEADS = 2;
  private static final int ROW = HEADS * D;
  private static final int TOKENS = 400;
  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(4).kvHeads(HEADS).headDim(D).build();
  private static final Rope ROPE = Rope.plain(RopePairs.HALVES, 10000, D);

  private final float[] keys = lowRank(1, TOKENS);
  private final float[] values = lowRank(2, TOKENS);

  /** Rows with most of their variance in few directions, as those of models have. */
  private static float[] lowRank(long seed, int tokens) {
    Random shape = new Random(seed);
    float[][] basis = new float[6][ROW];
    for (float[] vector : basis) {
      for (int c = 0; c < ROW; c++) {
        vector[c] = (float) shape.nextGaussian();
      }
    }
    float[] rows = new float[tokens * ROW];
    for (int t = 0; t < tokens; t++) {
      for (float[] vector : basis) {
        float factor = (float) shape.nextGaussian();
        for (int c = 0; c < ROW; c++) {
          rows[t * ROW + c] += factor * vector[c];
        }
      }
    }
    return rows;
  }

  private CommVqCodebooks train() {
    try (KeyTrainer keyTrainer = KeyTrainer.builder(HEADS, D).stages(5).steps(20).build();
        ValueFitter fitter = ValueFitter.of(ROW, 2 * ROW)) {
      keyTrainer.add(keys, TOKENS);
      fitter.add(values, TOKENS);
      return CommVqCodebooks.builder(GEOMETRY)
          .keys(0, keyTrainer.train(progress -> {}))
          .values(0, fitter.train(progress -> {}))
          .build();
    }
  }

  @Test
  void trainedOnTheFlyItBeatsUniformAndSurvivesAProfile(@TempDir Path folder) throws IOException {
    CommVqCodebooks codebooks = train();
    CommVq method = CommVq.of(codebooks, ROPE);
    assertEquals("commvq-k2v2", method.name());
    double[] commvq = errors(method);
    double[] uniform = errors(Uniform.bits(2));
    assertTrue(commvq[0] < uniform[0] && commvq[1] < uniform[1], () -> commvq[0] + " " + uniform[0] + " " + commvq[1]);

    Path file = folder.resolve("profile.safetensors");
    Profile.builder(GEOMETRY).codebooks(codebooks).build().save(file);
    CommVq loaded = CommVq.of(Profile.load(file, GEOMETRY).codebooks(), ROPE);
    assertArrayEquals(commvq, errors(loaded));
    assertThrows(
        RuntimeException.class,
        () -> Profile.load(file, KvGeometry.builder().layers(1).queryHeads(4).kvHeads(1).headDim(64).build()));
  }

  private double[] errors(dev.kvasir.KvMethod method) {
    try (KvCache cache = KvCache.builder(GEOMETRY).method(method).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, keys, values, TOKENS);
      return new double[] {
        error(sequence.read(0, Side.KEYS, 0, TOKENS), keys), error(sequence.read(0, Side.VALUES, 0, TOKENS), values)
      };
    }
  }

  private static double error(float[] got, float[] want) {
    double sum = 0;
    for (int i = 0; i < got.length; i++) {
      sum += Math.pow(got[i] - want[i], 2);
    }
    return sum;
  }

  @Test
  void aShiftIsWhatQueriesSeeOfMovedKeys() {
    CommVq method = CommVq.of(train(), ROPE);
    try (KvCache cache = KvCache.builder(GEOMETRY).method(method).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, keys, values, TOKENS);
      float[] query = new float[4 * D];
      for (int i = 0; i < query.length; i++) {
        query[i] = (float) Math.sin(i);
      }
      float[] before = new float[query.length];
      float[] after = new float[query.length];
      sequence.attend(0, query, before);
      // Keys and query moved by the same distance: nothing changes.
      sequence.shift(0, 1234);
      float[] moved = query.clone();
      ROPE.rotate(moved, 1, 4, 1234);
      sequence.attend(0, moved, after);
      assertArrayEquals(before, after, 1e-4f);
      assertThrows(IllegalArgumentException.class, () -> sequence.shift(-1, 5));
    }
    try (KvCache cache = KvCache.builder(GEOMETRY).build();
        KvSequence sequence = cache.newSequence()) {
      assertThrows(IllegalArgumentException.class, () -> sequence.shift(0, 5));
    }
  }

  /** A move stays where it begins at the end of what is left: then it is one of what is appended next. */
  @Test
  void truncateForgetsMovesThatBeginBehindTheEnd() {
    int half = 30;
    CommVq method = CommVq.of(train(), ROPE);
    try (KvCache cache = KvCache.builder(GEOMETRY).method(method).build()) {
      float[] plain = attended(cache, sequence -> {});
      float[] moved = attended(cache, sequence -> sequence.shift(half, 9));
      assertFalse(Arrays.equals(plain, moved));
      Consumer<KvSequence> behind =
          sequence -> {
            sequence.truncate(half);
            append(sequence, half, 2 * half);
          };
      Map<Consumer<KvSequence>, float[]> cases = new LinkedHashMap<>();
      cases.put(sequence -> sequence.shift(half, 9), moved);
      cases.put(sequence -> sequence.shift(half + 1, 9), plain);
      cases.put(sequence -> sequence.shift(9 * half, 9), plain);
      cases.forEach((shift, expected) -> assertArrayEquals(expected, attended(cache, shift.andThen(behind))));
      // A token less, and the move is forgotten.
      Consumer<KvSequence> less =
          sequence -> {
            sequence.shift(half, 9);
            sequence.truncate(half - 1);
            append(sequence, half - 1, 2 * half);
          };
      assertArrayEquals(plain, attended(cache, less));
      // Nothing is cut, and a move that was to come is forgotten all the same.
      Consumer<KvSequence> early =
          sequence -> {
            sequence.truncate(half);
            sequence.shift(half + 1, 9);
            sequence.truncate(half);
            append(sequence, half, 2 * half);
          };
      assertArrayEquals(plain, attended(cache, early));
      // keep forgets none, though what it was for goes.
      Consumer<KvSequence> guessed =
          sequence -> {
            sequence.truncate(half);
            sequence.guess();
            append(sequence, half, 2 * half);
            sequence.shift(half, 9);
            sequence.keep();
            append(sequence, half, 2 * half);
          };
      assertArrayEquals(moved, attended(cache, guessed));
    }
  }

  private void append(KvSequence sequence, int from, int to) {
    sequence.append(
        0, Arrays.copyOfRange(keys, from * ROW, to * ROW), Arrays.copyOfRange(values, from * ROW, to * ROW), to - from);
  }

  /** What 60 tokens give a query after something has happened to them. */
  private float[] attended(KvCache cache, Consumer<KvSequence> change) {
    try (KvSequence sequence = cache.newSequence()) {
      append(sequence, 0, 60);
      change.accept(sequence);
      assertEquals(60, sequence.length());
      float[] query = new float[4 * D];
      Arrays.fill(query, 0.3f);
      float[] output = new float[query.length];
      sequence.attend(0, query, output);
      return output;
    }
  }

  @Test
  void statsCountBitsWithAndWithoutCodebooks() {
    CommVqCodebooks codebooks = train();
    try (KvCache cache = KvCache.builder(GEOMETRY).method(CommVq.of(codebooks, ROPE)).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, keys, values, TOKENS);
      KvStats stats = cache.stats();
      KvStats.Layer layer = stats.total();
      KeyCodebook table = codebooks.keys(0).orElseThrow();
      int codes = codebooks.values(0).orElseThrow().codes();
      long bytes = 2L * (HEADS * table.stages() * table.entries() * D + codes * ROW);
      assertEquals(bytes, layer.codebookBytes());
      assertEquals(
          layer.bitsPerElement() + 8.0 * bytes / (2 * TOKENS * ROW), layer.bitsPerElementWithCodebooks(), 1e-9);
      assertEquals(layer.bytes(), stats.bytes());
    }
    try (KvCache cache = KvCache.builder(GEOMETRY).method(Uniform.bits(2)).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, keys, values, TOKENS);
      KvStats.Layer layer = cache.stats().total();
      assertEquals(0, layer.codebookBytes());
      assertEquals(layer.bitsPerElement(), layer.bitsPerElementWithCodebooks());
    }
  }

  @Test
  void whatDoesNotFitIsRefused() {
    CommVqCodebooks codebooks = train();
    assertThrows(
        IllegalArgumentException.class, () -> CommVq.of(codebooks, Rope.plain(RopePairs.HALVES, 10000, 64)));
    assertThrows(
        IllegalArgumentException.class, () -> CommVq.of(codebooks, Rope.plain(RopePairs.NEIGHBOURS, 10000, D)));
    assertThrows(IllegalArgumentException.class, () -> CommVq.of(codebooks, ROPE).refinements(101));
    KvGeometry other = KvGeometry.builder().layers(1).queryHeads(4).kvHeads(4).headDim(D).build();
    assertThrows(
        IllegalArgumentException.class,
        () -> KvCache.builder(other).method(CommVq.of(codebooks, ROPE)).build().close());
  }
}
