package dev.kvasir.conformance;

import static dev.kvasir.conformance.CommVqConformanceTest.KV_HEADS;
import static dev.kvasir.conformance.CommVqConformanceTest.TOKENS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Precision;
import dev.kvasir.Side;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.method.Spectral;
import java.util.List;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Codec spectral, with bases and without: attention is that of double precision over the rows that the cache reads. */
class SpectralConformanceTest {

  @ParameterizedTest(name = "d={0}")
  @ValueSource(ints = {32, 48, 64, 80, 128, 256})
  void everyBackend(int headDim) {
    float[] keys = Data.NORMAL.rows(21, TOKENS, KV_HEADS * headDim);
    float[] values = Data.NORMAL.rows(22, TOKENS, KV_HEADS * headDim);
    for (int ratio : new int[] {1, 4}) {
      KvGeometry geometry =
          KvGeometry.builder().layers(1).queryHeads(KV_HEADS * ratio).kvHeads(KV_HEADS).headDim(headDim).build();
      float[] query = Data.NORMAL.rows(23, 1, KV_HEADS * ratio * headDim);
      for (SpectralBases bases : List.of(SpectralBases.builder(geometry).build(), bases(geometry, headDim))) {
        for (String backend : Registry.backends()) {
          for (Precision precision : Precision.values()) {
            Spectral method = Spectral.of(bases, 2).bits(List.of(2.5), List.of(1.0)).sinks(1);
            String where = "d=" + headDim + ", ratio " + ratio + ", " + backend + " " + precision;
            try (KvCache cache =
                    KvCache.builder(geometry).method(method).backend(backend).precision(precision).build();
                KvSequence sequence = cache.newSequence()) {
              sequence.append(0, keys, values, TOKENS);
              assertEquals(2, sequence.pageCount(0));
              float[] output = new float[query.length];
              sequence.attend(0, query, output);
              double[] expected =
                  CommVqConformanceTest.attention(
                      sequence.read(0, Side.KEYS, 0, TOKENS),
                      sequence.read(0, Side.VALUES, 0, TOKENS),
                      query,
                      ratio,
                      headDim);
              double nmse = ReferenceAttention.nmse(expected, output, 0);
              assertTrue(nmse <= Registry.nmse(precision), where + ": NMSE " + nmse);
              requireWidths(cache.stats(), bases, headDim, where);
            }
          }
        }
      }
    }
  }

  /** Rows of all channels alike: what is asked for is what they get, to a tile of eight. */
  private static void requireWidths(KvStats stats, SpectralBases bases, int headDim, String where) {
    KvStats.Layer layer = stats.layers().get(0);
    assertTrue(layer.keyBits() <= 2.5 + 4.0 / headDim && layer.keyBits() > 2.5 - 36.0 / headDim, where);
    assertEquals(1.0, layer.valueBits(), 4.0 / headDim, where);
    long channels = layer.keyChannels().values().stream().mapToLong(count -> count).sum();
    assertEquals(2L * KV_HEADS * headDim, channels, where);
    assertEquals(bases.isEmpty() ? 0 : 4L * KV_HEADS * headDim * headDim, layer.codebookBytes(), where);
  }

  private static SpectralBases bases(KvGeometry geometry, int headDim) {
    SpectralBases.Builder builder = SpectralBases.builder(geometry);
    for (Side side : Side.values()) {
      float[] vectors = Data.NORMAL.rows(24 + side.code(), KV_HEADS * headDim, headDim);
      for (int i = 0; i < vectors.length; i++) {
        boolean diagonal = i % headDim == i / headDim % headDim;
        vectors[i] = (float) (vectors[i] * 0.3 / Math.sqrt(headDim)) + (diagonal ? 1 : 0);
      }
      builder.basis(0, side, vectors);
    }
    return builder.build();
  }
}
