package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.AttendBatch;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Rows;
import dev.kvasir.Side;
import dev.kvasir.Testing;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Layers whose keys and values share a row. */
class LatentTest {

  private static final int HEADS = 3;
  private static final int ROW = 576;
  private static final int VALUE = 512;

  private final Random random = new Random(5);

  private static KvGeometry geometry() {
    return KvGeometry.builder().layers(1).queryHeads(HEADS).latent(ROW, VALUE).build();
  }

  /** The values that a head's query sees, weighted in double precision. */
  private static double[] expected(float[] rows, int tokens, float[] query, int head) {
    double[] weights = new double[tokens];
    double highest = Double.NEGATIVE_INFINITY;
    for (int t = 0; t < tokens; t++) {
      for (int c = 0; c < ROW; c++) {
        weights[t] += (double) query[head * ROW + c] * rows[t * ROW + c] / Math.sqrt(ROW);
      }
      highest = Math.max(highest, weights[t]);
    }
    double sum = 0;
    for (int t = 0; t < tokens; t++) {
      weights[t] = Math.exp(weights[t] - highest);
      sum += weights[t];
    }
    double[] output = new double[VALUE];
    for (int t = 0; t < tokens; t++) {
      for (int c = 0; c < VALUE; c++) {
        output[c] += weights[t] / sum * rows[t * ROW + c];
      }
    }
    return output;
  }

  @Test
  void attendsOverOneRow() {
    int tokens = 300;
    for (KvMethod method : List.of(new HalfPrecision(), Uniform.bits(4), PmKvq.floor(4).startBits(8))) {
      try (KvCache cache = Testing.cache(geometry()).method(method).build();
          KvSequence sequence = cache.newSequence()) {
        float[] rows = Testing.gaussian(random, tokens * ROW);
        sequence.append(0, Rows.of(rows), tokens);
        float[] keys = sequence.read(0, Side.KEYS, 0, tokens);
        float[] values = sequence.read(0, Side.VALUES, 0, tokens);
        assertEquals(tokens * VALUE, values.length);
        for (int t = 0; t < tokens; t++) {
          assertArrayEquals(
              Arrays.copyOfRange(keys, t * ROW, t * ROW + VALUE),
              Arrays.copyOfRange(values, t * VALUE, (t + 1) * VALUE));
        }
        float[] query = Testing.gaussian(random, HEADS * ROW);
        float[] output = new float[HEADS * VALUE];
        sequence.attend(0, query, output);
        for (int head = 0; head < HEADS; head++) {
          Testing.assertClose(expected(keys, tokens, query, head), output, head * VALUE, method.name());
        }
        float[] batched = new float[HEADS * VALUE];
        cache.attend(new AttendBatch(List.of(sequence)).queries(Rows.of(query)).outputs(Rows.of(batched)));
        assertArrayEquals(output, batched);
        assertTrue(cache.stats().tiles() > 0);
        assertEquals(cache.stats().tiles(), cache.stats().fallbackTiles());
      }
    }
  }

  @Test
  void takesRowsOfManySequences() {
    float[] rows = Testing.gaussian(random, 8 * ROW);
    try (KvCache cache = Testing.cache(geometry()).build();
        KvSequence one = cache.newSequence();
        KvSequence two = cache.newSequence()) {
      cache.append(0, List.of(one, two), new int[] {3, 5}, Rows.of(rows));
      assertEquals(5, two.length(0));
      try (KvSequence alone = cache.newSequence()) {
        alone.append(0, Rows.of(Arrays.copyOfRange(rows, 3 * ROW, 8 * ROW)), 5);
        assertArrayEquals(alone.read(0, Side.KEYS, 0, 5), two.read(0, Side.KEYS, 0, 5));
      }
    }
  }

  @Test
  void refusesWhatCannotBe() {
    KvGeometry.Builder builder = KvGeometry.builder().layers(1).queryHeads(2);
    assertThrows(IllegalArgumentException.class, () -> builder.latent(600, 512));
    assertThrows(IllegalArgumentException.class, () -> builder.latent(640, 512));
    assertThrows(IllegalArgumentException.class, () -> builder.latent(576, 580));
    assertThrows(
        IllegalArgumentException.class, () -> Testing.cache(geometry()).method(PatternKv.bits(2)).build());
    float[] rows = Testing.gaussian(random, 2 * ROW);
    try (KvCache cache = Testing.cache(geometry()).build();
        KvCache plain = Testing.cache(Testing.small()).build();
        KvSequence sequence = cache.newSequence();
        KvSequence other = plain.newSequence()) {
      assertThrows(IllegalArgumentException.class, () -> sequence.append(0, rows, rows, 1));
      assertThrows(IllegalArgumentException.class, () -> other.append(0, Rows.of(rows), 1));
      assertThrows(IllegalArgumentException.class, () -> sequence.append(0, Rows.of(rows), 3));
      rows[ROW + 400] = Float.NaN;
      NotFiniteException thrown =
          assertThrows(NotFiniteException.class, () -> sequence.append(0, Rows.of(rows), 2));
      Testing.assertNames(thrown, "token 1", "channel 400");
      assertEquals(0, sequence.length(0));
    }
  }

  @Test
  void isPartOfTheGeometry() {
    KvGeometry mixed =
        KvGeometry.builder().layers(2).queryHeads(4).kvHeads(2).headDim(64).latent(1, ROW, VALUE).build();
    assertEquals(64, mixed.valueDim(0));
    assertEquals(ROW, mixed.headDim(1));
    assertEquals(1, mixed.kvHeads(1));
    assertEquals(4 * VALUE, mixed.outputSize(1));
    assertEquals(4 * ROW, mixed.querySize(1));
    assertTrue(mixed.latent(1));
  }
}
