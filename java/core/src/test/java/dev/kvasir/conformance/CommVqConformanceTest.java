package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.CodecInfo;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Kvasir;
import dev.kvasir.Precision;
import dev.kvasir.Side;
import dev.kvasir.codebook.CommVqCodebooks;
import dev.kvasir.codebook.KeyCodebook;
import dev.kvasir.codebook.ValueCodebook;
import dev.kvasir.method.CommVq;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Codec commvq, keys and values at 1 and 2 bits, with codebooks of random vectors: attention is that of double precision
 * over the rows that the cache reads, turned by RoPE.
 */
class CommVqConformanceTest {

  static final int KV_HEADS = 2;
  static final int TOKENS = 300;

  static List<Arguments> widthsAndDims() {
    List<Arguments> all = new ArrayList<>();
    for (CodecInfo codec : Kvasir.codecs()) {
      for (int bits : codec.trained() ? codec.bits() : List.<Integer>of()) {
        for (int headDim : Registry.HEAD_DIMS) {
          all.add(Arguments.of(bits, headDim));
        }
      }
    }
    return all;
  }

  @Test
  void bothWidthsAreThere() {
    assertEquals(2 * Registry.HEAD_DIMS.length, widthsAndDims().size());
  }

  @ParameterizedTest(name = "{0} bits, d={1}")
  @MethodSource("widthsAndDims")
  void everyBackend(int bits, int headDim) {
    RopePairs pairs = headDim % 32 == 0 ? RopePairs.HALVES : RopePairs.NEIGHBOURS;
    Rope rope = Rope.plain(pairs, 10000, headDim);
    float[] keys = Data.NORMAL.rows(11, TOKENS, KV_HEADS * headDim);
    float[] values = Data.NORMAL.rows(12, TOKENS, KV_HEADS * headDim);
    for (int ratio : new int[] {1, 4}) {
      KvGeometry geometry =
          KvGeometry.builder().layers(1).queryHeads(KV_HEADS * ratio).kvHeads(KV_HEADS).headDim(headDim).build();
      CommVqCodebooks codebooks = codebooks(geometry, pairs, bits, headDim);
      float[] query = Data.NORMAL.rows(13, 1, KV_HEADS * ratio * headDim);
      for (String backend : Registry.backends()) {
        for (Precision precision : Precision.values()) {
          String where = bits + " bits, d=" + headDim + ", ratio " + ratio + ", " + backend + " " + precision;
          CommVq method = CommVq.of(codebooks, rope).sinks(1);
          try (KvCache cache =
                  KvCache.builder(geometry).method(method).backend(backend).precision(precision).build();
              KvSequence sequence = cache.newSequence()) {
            sequence.append(0, keys, values, TOKENS);
            assertEquals(2, sequence.pageCount(0));
            float[] output = new float[query.length];
            sequence.attend(0, query, output);
            float[] turned = sequence.read(0, Side.KEYS, 0, TOKENS);
            rope.rotate(turned, TOKENS, KV_HEADS, 0);
            double[] expected =
                attention(turned, sequence.read(0, Side.VALUES, 0, TOKENS), query, ratio, headDim);
            double nmse = ReferenceAttention.nmse(expected, output, 0);
            assertTrue(nmse <= Registry.nmse(precision), () -> where + ": NMSE " + nmse);
            KvStats stats = cache.stats();
            assertEquals(backend, stats.backend());
            assertEquals(2 * KV_HEADS, stats.tiles(), where);
            assertEquals(0, stats.fallbackTiles(), where);
          }
        }
      }
    }
  }

  /** Attention by its definition. */
  static double[] attention(float[] keys, float[] values, float[] query, int ratio, int headDim) {
    double[] outputs = new double[query.length];
    for (int head = 0; head < query.length / headDim; head++) {
      int kvHead = head / ratio;
      double[] scores = new double[TOKENS];
      double highest = Double.NEGATIVE_INFINITY;
      for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < headDim; c++) {
          scores[t] += (double) query[head * headDim + c] * keys[(t * KV_HEADS + kvHead) * headDim + c];
        }
        scores[t] /= Math.sqrt(headDim);
        highest = Math.max(highest, scores[t]);
      }
      double sum = 0;
      for (int t = 0; t < TOKENS; t++) {
        scores[t] = Math.exp(scores[t] - highest);
        sum += scores[t];
      }
      for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < headDim; c++) {
          outputs[head * headDim + c] += scores[t] / sum * values[(t * KV_HEADS + kvHead) * headDim + c];
        }
      }
    }
    return outputs;
  }

  private static CommVqCodebooks codebooks(KvGeometry geometry, RopePairs pairs, int bits, int headDim) {
    int stages = (int) Math.max(1, Math.round(bits * headDim / 12.0));
    int width = KV_HEADS * headDim;
    float[] tables = Data.NORMAL.rows(14, KV_HEADS * stages * 64, headDim);
    float[] table = Data.NORMAL.rows(15, bits * width, width);
    for (int i = 0; i < tables.length; i++) {
      tables[i] *= 0.3f;
    }
    for (int i = 0; i < table.length; i++) {
      table[i] *= 0.1f;
    }
    return CommVqCodebooks.builder(geometry)
        .keys(0, new KeyCodebook(KV_HEADS, headDim, pairs, stages, 64, tables))
        .values(0, new ValueCodebook(width, bits * width, table, null))
        .build();
  }
}
