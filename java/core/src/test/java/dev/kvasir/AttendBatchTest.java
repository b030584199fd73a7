package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.method.Uniform;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.function.Consumer;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** One call of attention from Java: all that can be set arrives, and what does not fit together is refused. */
@Tag("jnicheck")
class AttendBatchTest {

  private static final int HEADS = 4;
  private static final int DIM = 32;
  private static final int ROW = 2 * DIM;
  private static final int QUERY = HEADS * DIM;
  private static final float[] SINKS = {0.5f, -1, 2, 0};

  /** Layer 1 reads layer 0, has sinks and a cap. */
  private static KvGeometry geometry() {
    return KvGeometry.builder()
        .layers(2).queryHeads(HEADS).kvHeads(2).headDim(DIM)
        .source(1, 0).softCap(1, 2.5f).sinkLogits(1, SINKS)
        .build();
  }

  private static List<KvSequence> sequences(KvCache cache, int... lengths) {
    List<KvSequence> sequences = new ArrayList<>();
    for (int length : lengths) {
      Random random = new Random(length);
      KvSequence sequence = cache.newSequence();
      sequence.append(
          0, Testing.gaussian(random, length * ROW), Testing.gaussian(random, length * ROW), length);
      sequences.add(sequence);
    }
    return sequences;
  }

  /** Outputs, then log-sums, of one query token over the first `count` tokens of layer `layer`, in double. */
  private static double[][] reference(
      KvSequence sequence, int layer, float[] queries, int row, int count, boolean sinks) {
    float[] keys = sequence.read(layer, Side.KEYS, 0, count);
    float[] values = sequence.read(layer, Side.VALUES, 0, count);
    KvGeometry g = sequence.cache().geometry();
    double[] outputs = new double[QUERY];
    double[] sums = new double[HEADS];
    for (int head = 0; head < HEADS; head++) {
      int offset = head / 2 * DIM;
      double total = sinks && layer == 1 ? Math.exp(SINKS[head]) : 0;
      for (int t = 0; t < count; t++) {
        double score = 0;
        for (int c = 0; c < DIM; c++) {
          score += (double) queries[row * QUERY + head * DIM + c] * keys[t * ROW + offset + c];
        }
        score *= g.softmaxScale(layer);
        if (g.softCap(layer) > 0) {
          score = g.softCap(layer) * Math.tanh(score / g.softCap(layer));
        }
        double weight = Math.exp(score);
        total += weight;
        for (int c = 0; c < DIM; c++) {
          outputs[head * DIM + c] += weight * values[t * ROW + offset + c];
        }
      }
      for (int c = 0; c < DIM; c++) {
        outputs[head * DIM + c] /= total;
      }
      sums[head] = Math.log(total);
    }
    return new double[][] {outputs, sums};
  }

  @Test
  void raggedQueriesWithLogSumsCapsAndSinks() {
    try (KvCache cache = Testing.cache(geometry()).method(Uniform.bits(4)).build()) {
      List<KvSequence> sequences = sequences(cache, 300, 7, 140);
      int[] tokens = {1, 3, 2};
      float[] queries = Testing.gaussian(new Random(1), 6 * QUERY);
      for (int layer : new int[] {0, 1}) {
        for (boolean sinks : new boolean[] {true, false}) {
          float[] outputs = new float[6 * QUERY];
          float[] sums = new float[6 * HEADS];
          cache.attend(
              new AttendBatch(sequences)
                  .layer(layer).tokens(tokens).learnedSinks(sinks)
                  .queries(Rows.of(queries)).outputs(Rows.of(outputs)).logSums(sums));
          int row = 0;
          for (int i = 0; i < 3; i++) {
            for (int t = 0; t < tokens[i]; t++, row++) {
              int count = (int) sequences.get(i).length(layer) - tokens[i] + t + 1;
              double[][] expected = reference(sequences.get(i), layer, queries, row, count, sinks);
              Testing.assertClose(expected[0], outputs, row * QUERY, "layer " + layer + ", row " + row);
              for (int head = 0; head < HEADS; head++) {
                assertEquals(expected[1][head], sums[row * HEADS + head], 5e-3);
              }
            }
          }
        }
      }
    }
  }

  @Test
  void anyMemoryTypeAndStridesGiveTheSame() {
    try (KvCache cache = Testing.cache(geometry()).build()) {
      List<KvSequence> sequences = sequences(cache, 200, 9);
      float[] queries = new float[2 * QUERY];
      Random random = new Random(3);
      for (int i = 0; i < queries.length; i++) {
        queries[i] = random.nextInt(64) / 16f - 2; // a float16 and a bfloat16, too
      }
      float[] expected = new float[queries.length];
      cache.attend(0, sequences, queries, expected);
      AttendBatch batch = new AttendBatch(sequences);

      float[] array = new float[queries.length];
      cache.attend(batch.queries(Rows.of(queries)).outputs(Rows.of(array)));
      assertArrayEquals(expected, array);

      FloatBuffer direct = Testing.direct(queries.length);
      cache.attend(batch.queries(Rows.of(Testing.direct(queries))).outputs(Rows.of(direct)));
      direct.get(0, array);
      assertArrayEquals(expected, array);

      // Heads first, with a gap, on the heap: what lies between rows stays.
      int headStride = 3 * DIM;
      float[] from = new float[HEADS * headStride];
      float[] to = new float[HEADS * headStride];
      java.util.Arrays.fill(to, -7);
      for (int i = 0; i < queries.length; i++) {
        from[i / QUERY * DIM + i % QUERY / DIM * headStride + i % DIM] = queries[i];
      }
      Rows outputs = Rows.of(FloatBuffer.wrap(to)).strides(DIM, headStride);
      cache.attend(batch.queries(Rows.of(from).strides(DIM, headStride)).outputs(outputs));
      for (int i = 0; i < to.length; i++) {
        int token = i % headStride / DIM;
        int at = token * QUERY + i / headStride * DIM + i % DIM;
        assertEquals(token < 2 ? expected[at] : -7, to[i]);
      }

      short[] halves = new short[queries.length];
      short[] bfloats = new short[queries.length];
      for (int i = 0; i < queries.length; i++) {
        halves[i] = Testing.halfBits(queries[i]);
        bfloats[i] = (short) (Float.floatToRawIntBits(queries[i]) >>> 16);
      }
      ShortBuffer results = Testing.direct(new short[queries.length]);
      cache.attend(
          batch.queries(Rows.of(ShortBuffer.wrap(bfloats), ElementType.BFLOAT16))
              .outputs(Rows.of(results, ElementType.FLOAT16)));
      short[] heap = new short[queries.length];
      cache.attend(
          batch.queries(Rows.of(Testing.direct(halves), ElementType.FLOAT16))
              .outputs(Rows.of(ShortBuffer.wrap(heap), ElementType.FLOAT16)));
      for (int i = 0; i < heap.length; i++) {
        assertEquals(Testing.halfBits(Testing.half(expected[i])), results.get(i));
        assertEquals(results.get(i), heap[i]);
      }
    }
  }

  @Test
  void guessesSeeTheirAncestors() {
    try (KvCache cache = Testing.cache(geometry()).build()) {
      KvSequence sequence = sequences(cache, 50).get(0);
      float[] queries = Testing.gaussian(new Random(5), 3 * QUERY);
      float[] outputs = new float[queries.length];
      // Two guesses for the token after the first of three.
      cache.attend(
          new AttendBatch(List.of(sequence)).tokensEach(3).masks(new long[] {0b001, 0b011, 0b101})
              .queries(Rows.of(queries)).outputs(Rows.of(outputs)));
      Testing.assertClose(reference(sequence, 0, queries, 0, 48, true)[0], outputs, 0, "first");
      Testing.assertClose(reference(sequence, 0, queries, 1, 49, true)[0], outputs, QUERY, "second");
      // The third does not see the second: what it saw, and the second, merge to all there is.
      float[] all = new float[queries.length];
      cache.attend(0, List.of(sequence), queries, all, 3);
      boolean differs = false;
      for (int c = 0; c < QUERY; c++) {
        differs |= Math.abs(all[2 * QUERY + c] - outputs[2 * QUERY + c]) > 1e-6;
      }
      assertTrue(differs);
    }
  }

  @Test
  void resultsOfTwoCachesMerge() {
    KvGeometry geometry = geometry();
    try (KvCache whole = Testing.cache(geometry).build();
        KvCache first = Testing.cache(geometry).build();
        KvCache second = Testing.cache(geometry).build()) {
      Random random = new Random(9);
      float[] keys = Testing.gaussian(random, 90 * ROW);
      float[] values = Testing.gaussian(random, 90 * ROW);
      float[] query = Testing.gaussian(random, QUERY);
      float[] expected = new float[QUERY];
      float[] outputs = new float[QUERY];
      float[] others = new float[QUERY];
      float[] sums = new float[HEADS];
      float[] otherSums = new float[HEADS];
      attend(whole, keys, values, 90, query, true, expected, sums);
      attend(first, keys, values, 60, query, true, outputs, sums);
      float[] late = java.util.Arrays.copyOfRange(keys, 60 * ROW, 90 * ROW);
      float[] lateValues = java.util.Arrays.copyOfRange(values, 60 * ROW, 90 * ROW);
      attend(second, late, lateValues, 30, query, false, others, otherSums);
      KvAttention.merge(Rows.of(outputs), sums, Rows.of(others), otherSums, 1, HEADS, DIM);
      for (int c = 0; c < QUERY; c++) {
        assertEquals(expected[c], outputs[c], 1e-5);
      }
      assertThrows(
          IllegalArgumentException.class,
          () -> KvAttention.merge(Rows.of(outputs), sums, Rows.of(others), new float[1], 1, HEADS, DIM));
      assertThrows(
          IllegalArgumentException.class,
          () -> KvAttention.merge(Rows.of(outputs), sums, Rows.of(others), otherSums, 0, HEADS, DIM));
    }
  }

  private static void attend(
      KvCache cache, float[] keys, float[] values, int tokens, float[] query, boolean sinks, float[] outputs,
      float[] sums) {
    try (KvSequence sequence = cache.newSequence()) {
      sequence.append(0, keys, values, tokens);
      cache.attend(
          new AttendBatch(List.of(sequence)).layer(1).learnedSinks(sinks)
              .queries(Rows.of(query)).outputs(Rows.of(outputs)).logSums(sums));
    }
  }

  @Test
  void aLayerThatReadsAnotherTakesNoRows() {
    try (KvCache cache = Testing.cache(geometry()).build()) {
      KvSequence sequence = sequences(cache, 5).get(0);
      assertEquals(5, sequence.length(1));
      IllegalArgumentException refused =
          assertThrows(
              IllegalArgumentException.class, () -> sequence.append(1, new float[ROW], new float[ROW], 1));
      Testing.assertNames(refused, "layer 1", "layer 0");
      KvGeometry.Builder builder = KvGeometry.builder().layers(3).queryHeads(4).kvHeads(2).headDim(32).source(1, 0);
      assertThrows(IllegalArgumentException.class, () -> builder.source(2, 1).build());
      assertThrows(IllegalArgumentException.class, () -> builder.source(2, 3).build());
      assertThrows(IllegalArgumentException.class, () -> builder.source(2, 0).kvHeads(2, 4).build());
      assertThrows(IllegalArgumentException.class, () -> builder.sinkLogits(0, 1, 2).build());
      assertThrows(IllegalArgumentException.class, () -> builder.softCap(-1));
      assertThrows(IllegalArgumentException.class, () -> builder.sinkLogits(0, Float.NaN));
    }
  }

  @Test
  void whatDoesNotFitIsRefusedBeforeAnythingIsWritten() {
    try (KvCache cache = Testing.cache(geometry()).build();
        KvCache other = Testing.cache(geometry()).build()) {
      List<KvSequence> sequences = sequences(cache, 20, 3);
      float[] queries = new float[3 * QUERY];
      float[] outputs = new float[3 * QUERY];
      java.util.Arrays.fill(outputs, -7);
      List<Consumer<AttendBatch>> wrong =
          List.of(
              batch -> batch.layer(2),
              batch -> batch.layer(-1),
              batch -> batch.tokens(1),
              batch -> batch.tokens(0, 1),
              batch -> batch.tokens(2, 2),
              batch -> batch.tokens(1, 4),
              batch -> batch.tokensEach(0),
              batch -> batch.outputs(Rows.of(new float[QUERY])),
              batch -> batch.outputs(Rows.of(FloatBuffer.wrap(outputs).asReadOnlyBuffer())),
              batch -> batch.outputs(Rows.of(outputs).strides(5, 5)),
              batch -> batch.queries(Rows.of(queries).strides(Long.MAX_VALUE, DIM)),
              batch -> batch.queries(Rows.of(queries).strides(-1, DIM)),
              batch -> batch.logSums(new float[HEADS]),
              batch -> batch.masks(new long[1]),
              batch -> batch.masks(new long[] {1, 2}),
              batch -> batch.depths(new int[2]),
              batch -> batch.masks(new long[] {1, 1}).depths(new int[] {0, 64}),
              batch -> batch.queries(Rows.of(new DeviceBuffer(4096, ElementType.FLOAT32, 3 * QUERY))));
      for (int i = 0; i < wrong.size(); i++) {
        Consumer<AttendBatch> change = wrong.get(i);
        AttendBatch batch = new AttendBatch(sequences).queries(Rows.of(queries)).outputs(Rows.of(outputs));
        assertThrows(
            IllegalArgumentException.class,
            () -> {
              change.accept(batch);
              cache.attend(batch);
            },
            "change " + i);
        for (float output : outputs) {
          assertEquals(-7, output);
        }
      }
      assertThrows(IllegalArgumentException.class, () -> cache.attend(new AttendBatch(sequences)));
      assertThrows(IllegalArgumentException.class, () -> new AttendBatch(List.of()));
      AttendBatch foreign = new AttendBatch(sequences).queries(Rows.of(queries)).outputs(Rows.of(outputs));
      assertThrows(IllegalArgumentException.class, () -> other.attend(foreign));
    }
  }
}
