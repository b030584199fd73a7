package dev.kvasir.micrometer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Testing;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.Uniform;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Three layers, so that probed layers and their numbers in the probe differ; another head in each. */
class QualityProbeTest {

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(32).build();
  private static final int TOKENS = 400;
  private static final int ROW = 64;
  private static final int QUERY = 128;

  private final Random random = Testing.random("QualityProbeTest");
  private final float[] keys = Testing.gaussian(random, TOKENS * ROW);
  private final float[] values = Testing.gaussian(random, TOKENS * ROW);
  private final float[] queries = Testing.gaussian(random, 2 * QUERY);

  @Test
  void theErrorIsThatOfTheProbedHeads() {
    try (KvCache cache = cache(Uniform.bits(2));
        QualityProbe probe = QualityProbe.on(cache).layers(2).every(1).build();
        KvSequence sequence = cache.newSequence()) {
      probe.append(sequence, 2, keys, values, TOKENS);
      float[] outputs = queries.clone();
      probe.attend(sequence, 2, outputs, outputs, 2); // written over the queries
      float[] plain = new float[2 * QUERY];
      sequence.attend(2, queries, plain, 2);
      assertArrayEquals(plain, outputs);
      assertEquals(1, probe.samples());
      assertEquals(expected(plain, 0), probe.error(), 0.01 * probe.error());
      assertTrue(probe.error() > 0.05, "2 bits cost " + probe.error());
    }
  }

  @Test
  void sixteenBitsCostNothing() {
    try (KvCache cache = cache(new HalfPrecision());
        QualityProbe probe = QualityProbe.on(cache).every(1).build();
        KvSequence sequence = cache.newSequence()) {
      for (int layer = 0; layer < 3; layer++) {
        probe.append(sequence, layer, keys, values, TOKENS);
        probe.attend(sequence, layer, queries, new float[2 * QUERY], 2);
      }
      assertEquals(3, probe.samples());
      assertTrue(probe.error() < 1e-5, "16 bits cost " + probe.error());
    }
  }

  /** Its rows mean something else: two heads of 32 channels, or one of 64. */
  @Test
  void sequencesOfOtherCachesAreNotWatched() {
    KvGeometry shape = KvGeometry.builder().layers(3).queryHeads(2).kvHeads(1).headDim(64).build();
    try (KvCache cache = cache(Uniform.bits(2));
        KvCache other = KvCache.builder(shape).build();
        QualityProbe probe = QualityProbe.on(cache).every(1).build();
        KvSequence sequence = other.newSequence()) {
      probe.append(sequence, 0, keys, values, TOKENS);
      probe.attend(sequence, 0, queries, new float[2 * QUERY], 2);
      assertEquals(0, probe.watchedSequences());
      assertEquals(0, probe.samples(), "an error of " + probe.error());
    }
  }

  @Test
  void whatIsWrongWithACallIsRefusedAsWithoutAProbe() {
    try (KvCache cache = cache(Uniform.bits(4));
        QualityProbe probe = QualityProbe.on(cache).every(1).build();
        KvSequence sequence = cache.newSequence()) {
      probe.append(sequence, 0, keys, values, TOKENS);
      for (int tokens : new int[] {-1, 0, 3, Integer.MAX_VALUE}) {
        assertThrows(
            IllegalArgumentException.class, () -> probe.attend(sequence, 0, queries, new float[3 * QUERY], tokens));
      }
      probe.attend(sequence, 0, queries, new float[2 * QUERY], 2);
      assertEquals(1, probe.samples());
    }
  }

  @Test
  void oneStepOfManyIsComputedTwice() {
    try (KvCache cache = cache(Uniform.bits(4));
        QualityProbe probe = QualityProbe.on(cache).layers(0, 2).every(5).build();
        KvSequence sequence = cache.newSequence()) {
      for (int step = 0; step < 11; step++) {
        for (int layer = 0; layer < 3; layer++) {
          probe.append(sequence, layer, keys, values, 1);
          probe.attend(sequence, layer, queries, new float[QUERY], 1);
        }
      }
      assertEquals(2 * 3, probe.samples());
    }
  }

  @Test
  void cutsAreFollowedAndWhatCameAnotherWayIsGivenUp() {
    try (KvCache cache = cache(Uniform.bits(4));
        QualityProbe probe = QualityProbe.on(cache).layers(1).every(1).build()) {
      KvSequence sequence = cache.newSequence();
      probe.append(sequence, 1, keys, values, TOKENS);
      sequence.truncate(300);
      probe.append(sequence, 1, keys, values, 7);
      probe.attend(sequence, 1, queries, new float[QUERY], 1);
      assertEquals(1, probe.samples());
      KvSequence fork = sequence.fork();
      probe.append(fork, 1, keys, values, 1); // not watched
      probe.attend(fork, 1, queries, new float[QUERY], 1);
      assertEquals(1, probe.samples());
      assertEquals(1, probe.watchedSequences());
      sequence.append(1, keys, values, 1); // unseen
      probe.attend(sequence, 1, queries, new float[QUERY], 1);
      assertEquals(1, probe.samples());
      assertEquals(0, probe.watchedSequences());
      assertEquals(0, probe.bytes());
      assertThrows(IllegalArgumentException.class, () -> probe.append(sequence, 1, keys, values, 0));
    }
  }

  @Test
  void asManyAreWatchedAsToldAndNoneForTooLong() {
    try (KvCache cache = cache(Uniform.bits(4));
        QualityProbe probe = QualityProbe.on(cache).layers(0).sequences(2).tokens(200).every(1).name("x").build()) {
      SimpleMeterRegistry registry = new SimpleMeterRegistry();
      probe.bindTo(registry);
      KvSequence[] sequences = new KvSequence[3];
      for (int i = 0; i < 3; i++) {
        sequences[i] = cache.newSequence();
        probe.append(sequences[i], 0, keys, values, 150);
      }
      assertEquals(2, probe.watchedSequences());
      sequences[0].close();
      KvSequence next = cache.newSequence();
      probe.append(next, 0, keys, values, 10);
      probe.attend(next, 0, queries, new float[QUERY], 1);
      assertEquals(2, probe.watchedSequences());
      probe.append(sequences[1], 0, keys, values, 100);
      assertEquals(1, probe.watchedSequences());
      assertEquals(probe.error(), registry.get("kvasir.quality.error").tag("cache", "x").gauge().value());
      assertEquals(1, registry.get("kvasir.quality.samples").functionCounter().count());
      assertTrue(registry.get("kvasir.quality.bytes").gauge().value() > 0);
      assertTrue(registry.get("kvasir.quality.probe").functionTimer().count() > 0);
    }
  }

  @Test
  void guessesThatStayAreFollowed() {
    try (KvCache cache = cache(new HalfPrecision());
        QualityProbe probe = QualityProbe.on(cache).every(1).build();
        KvSequence sequence = cache.newSequence()) {
      step(probe, sequence, 64);
      probe.guess(sequence);
      append(probe, sequence, 8);
      probe.keep(sequence, 0, 3, 7);
      step(probe, sequence, 1);
      probe.truncate(sequence, 60);
      step(probe, sequence, 1);
      assertEquals(9, probe.samples());
      assertEquals(1, probe.watchedSequences());
      assertTrue(probe.error() < 1e-5, "16 bits cost " + probe.error());
    }
  }

  /** Which of the guesses went, the lengths do not tell. */
  @Test
  void guessesThatStayUnseenEndWatching() {
    try (KvCache cache = cache(new HalfPrecision());
        QualityProbe probe = QualityProbe.on(cache).every(1).build();
        KvSequence sequence = cache.newSequence()) {
      step(probe, sequence, 64);
      sequence.guess();
      append(probe, sequence, 8);
      sequence.keep(0, 7);
      step(probe, sequence, 1);
      assertEquals(0, probe.watchedSequences());
      assertEquals(3, probe.samples());
      assertTrue(probe.error() < 1e-5, "16 bits cost " + probe.error());
    }
  }

  /** More than 64 tokens hold all guesses there may have been: what is before them has stayed. */
  @Test
  void longCutsAreFollowedUnseen() {
    try (KvCache cache = cache(new HalfPrecision());
        QualityProbe probe = QualityProbe.on(cache).every(1).build();
        KvSequence sequence = cache.newSequence()) {
      step(probe, sequence, 100);
      sequence.truncate(36);
      step(probe, sequence, 1);
      assertEquals(1, probe.watchedSequences());
      assertEquals(6, probe.samples());
      assertTrue(probe.error() < 1e-5, "16 bits cost " + probe.error());
    }
  }

  @Test
  void layersWithoutRowsOfTheirOwnAreNotChosen() {
    KvGeometry shared =
        KvGeometry.builder().layers(6).queryHeads(4).kvHeads(2).headDim(32).source(3, 0).source(4, 1).source(5, 2).build();
    try (KvCache cache = Testing.cache(shared).method(new HalfPrecision()).build();
        QualityProbe probe = QualityProbe.on(cache).every(1).build();
        KvSequence sequence = cache.newSequence()) {
      step(probe, sequence, 10);
      assertEquals(3, probe.samples());
      assertEquals(1, probe.watchedSequences());
    }
    KvGeometry latent = KvGeometry.builder().layers(3).queryHeads(4).latent(576, 512).build();
    try (KvCache cache = Testing.cache(latent).method(Uniform.bits(4)).build()) {
      IllegalArgumentException refusal =
          assertThrows(IllegalArgumentException.class, () -> QualityProbe.on(cache).build());
      assertTrue(refusal.getMessage().contains("keys and values of its own"), refusal.getMessage());
    }
  }

  private void step(QualityProbe probe, KvSequence sequence, int tokens) {
    append(probe, sequence, tokens);
    for (int layer = 0; layer < 3; layer++) {
      probe.attend(sequence, layer, queries, new float[QUERY], 1);
    }
  }

  /** Other rows each time. */
  private void append(QualityProbe probe, KvSequence sequence, int tokens) {
    for (int layer = 0; layer < 3; layer++) {
      float[] rows = Testing.gaussian(random, tokens * ROW);
      probe.append(sequence, layer, rows, rows, tokens);
    }
  }

  /** Plain attention in double precision, over the numbers as they were before any rounding. */
  private double expected(float[] got, int kvHead) {
    double difference = 0;
    double size = 0;
    for (int head = 2 * kvHead; head < 2 * kvHead + 2; head++) {
      float[] query = Arrays.copyOfRange(queries, QUERY + head * 32, QUERY + (head + 1) * 32);
      double[] sum = new double[32];
      double total = 0;
      for (int t = 0; t < TOKENS; t++) {
        double score = 0;
        for (int c = 0; c < 32; c++) {
          score += query[c] * keys[t * ROW + kvHead * 32 + c];
        }
        double weight = Math.exp(score / Math.sqrt(32));
        total += weight;
        for (int c = 0; c < 32; c++) {
          sum[c] += weight * values[t * ROW + kvHead * 32 + c];
        }
      }
      for (int c = 0; c < 32; c++) {
        double wanted = sum[c] / total;
        difference += Math.pow(got[QUERY + head * 32 + c] - wanted, 2);
        size += wanted * wanted;
      }
    }
    return Math.sqrt(difference / size);
  }

  private static KvCache cache(KvMethod method) {
    return Testing.cache(GEOMETRY).method(method).build();
  }
}
