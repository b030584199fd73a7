package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Precision;
import dev.kvasir.Side;
import dev.kvasir.conformance.Registry.Method;
import dev.kvasir.conformance.Registry.Width;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Decode attention against double precision over the decoded rows: the full product of
 *
 * <ul>
 *   <li>codecs and widths of the registry, and option settings (axis and group) of each,
 *   <li>backends that this machine can run,
 *   <li>head dims 32, 48, 64, 80, 128, 256,
 *   <li>1, 2, 4 and 7 query heads per kv head,
 *   <li>lengths 1, 127, 128, 129 and 1000,
 *   <li>both precisions; the fast one with 4 query heads per kv head alone.
 * </ul>
 *
 * <p>A sequence grows through the lengths, so that every length is also an append onto the one before. Stats prove that
 * the backend named is the one that ran: its tiles are counted, and a lower one had none.
 */
class AttentionConformanceTest {

  private static final int KV_HEADS = 2;
  private static final Set<Integer> FUSED_HEAD_DIMS = Set.of(64, 96, 128, 256);
  private static final int LARGEST_RATIO = Registry.GQA_RATIOS[Registry.GQA_RATIOS.length - 1];

  static List<Arguments> widthsAndDims() {
    List<Arguments> all = new ArrayList<>();
    for (Width width : Registry.widths()) {
      for (int headDim : Registry.HEAD_DIMS) {
        all.add(Arguments.of(width, headDim));
      }
    }
    return all;
  }

  @ParameterizedTest(name = "{0}, d={1}")
  @MethodSource("widthsAndDims")
  void everySettingOnEveryBackend(Width width, int headDim) {
    Tokens tokens = new Tokens(headDim);
    float[] query = Data.NORMAL.rows(3, 1, KV_HEADS * LARGEST_RATIO * headDim);
    for (Method method : width.methods(headDim)) {
      double[][] expected = null; // at the largest ratio; smaller ones take some of its query heads
      for (int ratio : Registry.GQA_RATIOS) {
        int[] heads = headsOf(ratio);
        if (width.reference().dependsOnQueries()) {
          expected = null; // other query heads, other pages
        }
        for (String backend : Registry.backends()) {
          for (Precision precision : ratio == 4 ? Precision.values() : new Precision[] {Precision.EXACT}) {
            try (KvCache cache = cache(headDim, ratio, method, backend, precision);
                KvSequence sequence = cache.newSequence()) {
              float[][] outputs = tokens.attend(sequence, select(query, heads, headDim));
              if (expected == null) {
                expected = tokens.reference(sequence, query);
              }
              String where = width + " " + method.keys().options() + " " + method.values().options() + " d=" + headDim
                  + ", ratio " + ratio + ", " + backend + " " + precision;
              check(expected, heads, outputs, Registry.nmse(precision), where);
              proveBackend(cache.stats(), backend, width, method, headDim, where);
            }
          }
        }
      }
    }
  }

  /** The first `ratio` query heads of each kv head, among those of the largest ratio. */
  private static int[] headsOf(int ratio) {
    return IntStream.range(0, KV_HEADS * ratio).map(i -> i / ratio * LARGEST_RATIO + i % ratio).toArray();
  }

  private static float[] select(float[] query, int[] heads, int headDim) {
    float[] selected = new float[heads.length * headDim];
    for (int i = 0; i < heads.length; i++) {
      System.arraycopy(query, heads[i] * headDim, selected, i * headDim, headDim);
    }
    return selected;
  }

  private static double[] select(double[] outputs, int[] heads) {
    int headDim = outputs.length / (KV_HEADS * LARGEST_RATIO);
    double[] selected = new double[heads.length * headDim];
    for (int i = 0; i < heads.length; i++) {
      System.arraycopy(outputs, heads[i] * headDim, selected, i * headDim, headDim);
    }
    return selected;
  }

  private static void check(double[][] expected, int[] heads, float[][] outputs, double limit, String where) {
    for (int i = 0; i < expected.length; i++) {
      double nmse = ReferenceAttention.nmse(select(expected[i], heads), outputs[i], 0);
      int length = Registry.LENGTHS[i];
      assertTrue(nmse <= limit, () -> where + ", length " + length + ": NMSE " + nmse + " above " + limit);
    }
  }

  private static void proveBackend(
      KvStats stats, String backend, Width width, Method method, int headDim, String where) {
    long pages = 0;
    for (int length : Registry.LENGTHS) {
      pages += length / PageShape.TOKENS;
    }
    assertEquals(backend, stats.backend(), where);
    assertEquals(pages * KV_HEADS, stats.tiles(), () -> where + ": tiles");
    boolean fused = !backend.equals("cuda") || hasFusedKernel(width, method, headDim);
    if (fused && width.reference().hasKernels(backend)) {
      assertEquals(0, stats.fallbackTiles(), () -> where + ": tiles of a lower backend");
    }
  }

  /** What the fused kernels of a GPU must serve; other head dims, groups and parameters may take the slower path. */
  private static boolean hasFusedKernel(Width width, Method method, int headDim) {
    boolean groups = !width.codec().equals("tiered")
        && (method.keys().options().containsKey("group")
            || method.keys().options().containsKey("axis")
            || method.values().options().containsKey("group")
            || method.values().options().containsKey("axis"));
    boolean byteParameters = method.keys().options().getOrDefault("parameter_bits", 16.0) == 8;
    return FUSED_HEAD_DIMS.contains(headDim) && !groups && !byteParameters;
  }

  private static KvCache cache(int headDim, int ratio, Method method, String backend, Precision precision) {
    KvGeometry geometry =
        KvGeometry.builder().layers(1).queryHeads(KV_HEADS * ratio).kvHeads(KV_HEADS).headDim(headDim).build();
    return KvCache.builder(geometry).method(method).backend(backend).precision(precision).build();
  }

  /** The tokens of the longest length, cut into what each length adds. */
  private static final class Tokens {
    private final int headDim;
    private final List<float[]> keys = new ArrayList<>();
    private final List<float[]> values = new ArrayList<>();

    Tokens(int headDim) {
      this.headDim = headDim;
      int done = 0;
      for (int length : Registry.LENGTHS) {
        keys.add(Data.NORMAL.rows(100 + length, length - done, KV_HEADS * headDim));
        values.add(Data.NORMAL.rows(200 + length, length - done, KV_HEADS * headDim));
        done = length;
      }
    }

    /** Grows the sequence through the lengths and attends at each. */
    float[][] attend(KvSequence sequence, float[] query) {
      float[][] outputs = new float[Registry.LENGTHS.length][query.length];
      int done = 0;
      for (int i = 0; i < outputs.length; i++) {
        sequence.append(0, keys.get(i), values.get(i), Registry.LENGTHS[i] - done);
        sequence.attend(0, query, outputs[i]);
        done = Registry.LENGTHS[i];
      }
      return outputs;
    }

    /** What attend must give, over the rows as they were stored at each length: pages are sealed only as they fill. */
    double[][] reference(KvSequence sequence, float[] query) {
      int row = KV_HEADS * headDim;
      double[][] outputs = new double[Registry.LENGTHS.length][];
      ReferenceAttention attention = new ReferenceAttention(LARGEST_RATIO * KV_HEADS, KV_HEADS, headDim, 0);
      float[][] decoded = {
        sequence.read(0, Side.KEYS, 0, Registry.LENGTHS[outputs.length - 1]),
        sequence.read(0, Side.VALUES, 0, Registry.LENGTHS[outputs.length - 1])
      };
      float[][] appended = {join(keys), join(values)};
      for (int i = 0; i < outputs.length; i++) {
        int length = Registry.LENGTHS[i];
        int sealed = length / PageShape.TOKENS * PageShape.TOKENS;
        float[][] rows = new float[2][length * row];
        for (int side = 0; side < 2; side++) {
          System.arraycopy(decoded[side], 0, rows[side], 0, sealed * row);
          System.arraycopy(appended[side], sealed * row, rows[side], sealed * row, (length - sealed) * row);
        }
        outputs[i] = attention.attend(rows[0], rows[1], 0, length, query, 1);
      }
      return outputs;
    }

    private static float[] join(List<float[]> parts) {
      float[] all = new float[parts.stream().mapToInt(part -> part.length).sum()];
      int done = 0;
      for (float[] part : parts) {
        System.arraycopy(part, 0, all, done, part.length);
        done += part.length;
      }
      return all;
    }
  }
}
