package dev.kvasir.codebook;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.method.CommVq;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import java.util.Random;
import org.junit.jupiter.api.Assertions;

/** What several tests of CommVQ need: data, what caches make of them, errors. */
final class CommVqTesting {

  private CommVqTesting() {}

  /** Rows with most of their variance in few directions, as keys and values have. {@code [tokens][width]} */
  static float[] correlated(long seed, long draw, int tokens, int width) {
    Random shape = new Random(seed);
    int rank = 8;
    double[] basis = new double[(rank + 1) * width];
    for (int i = 0; i < basis.length; i++) {
      basis[i] = shape.nextGaussian() * Math.exp(-0.3 * (i / width));
    }
    Random random = new Random(draw);
    float[] rows = new float[tokens * width];
    for (int t = 0; t < tokens; t++) {
      double[] factors = new double[rank + 1];
      for (int r = 0; r <= rank; r++) {
        factors[r] = r == 0 ? 1 : random.nextGaussian();
      }
      double norm = 1 + random.nextDouble();
      for (int c = 0; c < width; c++) {
        double sum = 0.1 * random.nextGaussian();
        for (int r = 0; r <= rank; r++) {
          sum += factors[r] * basis[r * width + c];
        }
        rows[t * width + c] = (float) (norm * sum);
      }
    }
    return rows;
  }

  /** Keys as a cache with this codebook returns them. Whole pages: what waits for one is kept in 16 bits. */
  static float[] stored(KeyCodebook codebook, float[] rows, int refinements) {
    KvGeometry geometry = geometry(codebook.kvHeads(), codebook.headDim());
    CommVqCodebooks codebooks = CommVqCodebooks.builder(geometry).keys(0, codebook).build();
    Rope rope = Rope.plain(codebook.pairs(), 10000, codebook.headDim());
    return stored(CommVq.of(codebooks, rope).refinements(refinements), geometry, Side.KEYS, rows);
  }

  /** Values as a cache with this codebook returns them. */
  static float[] stored(ValueCodebook codebook, float[] rows) {
    return stored(CommVqCodebooks.builder(geometry(codebook.width() / 32, 32)).values(0, codebook).build(), rows, 0);
  }

  /** Values as a cache with this codebook and its encoder returns them. */
  static float[] stored(TrainedValues trained, float[] rows, int flips) {
    KvGeometry geometry = geometry(trained.codebook().width() / 32, 32);
    return stored(CommVqCodebooks.builder(geometry).values(0, trained).build(), rows, flips);
  }

  private static float[] stored(CommVqCodebooks codebooks, float[] rows, int flips) {
    CommVq method = CommVq.of(codebooks, Rope.plain(RopePairs.HALVES, 10000, 32)).flips(flips);
    return stored(method, codebooks.geometry(), Side.VALUES, rows);
  }

  private static float[] stored(CommVq method, KvGeometry geometry, Side side, float[] rows) {
    int tokens = rows.length / geometry.rowSize(0);
    Assertions.assertEquals(0, tokens % KvCache.PAGE_TOKENS);
    try (KvCache cache = KvCache.builder(geometry).method(method.sinks(0)).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, rows, rows, tokens);
      return sequence.read(0, side, 0, tokens);
    }
  }

  private static KvGeometry geometry(int kvHeads, int headDim) {
    return KvGeometry.builder().layers(1).queryHeads(kvHeads).kvHeads(kvHeads).headDim(headDim).build();
  }

  static double meanSquare(float[] rows) {
    return error(rows, new float[rows.length]);
  }

  static double error(float[] a, float[] b) {
    Assertions.assertEquals(a.length, b.length);
    double sum = 0;
    for (int i = 0; i < a.length; i++) {
      sum += ((double) a[i] - b[i]) * ((double) a[i] - b[i]);
    }
    return sum / a.length;
  }

  /** Mean squared error of asymmetric min-max quantisation in groups of {@code group}, with unrounded parameters. */
  static double uniformError(float[] rows, int width, boolean byChannel, int group, int bits) {
    int tokens = rows.length / width;
    int outer = byChannel ? width : tokens;
    int along = byChannel ? tokens : width;
    double sum = 0;
    for (int o = 0; o < outer; o++) {
      for (int first = 0; first < along; first += group) {
        int end = Math.min(along, first + group);
        double low = Double.POSITIVE_INFINITY;
        double high = Double.NEGATIVE_INFINITY;
        for (int i = first; i < end; i++) {
          double x = rows[byChannel ? i * width + o : o * width + i];
          low = Math.min(low, x);
          high = Math.max(high, x);
        }
        double step = (high - low) / ((1 << bits) - 1);
        for (int i = first; i < end; i++) {
          double x = rows[byChannel ? i * width + o : o * width + i];
          double read = step == 0 ? low : low + step * Math.rint((x - low) / step);
          sum += (x - read) * (x - read);
        }
      }
    }
    return sum / rows.length;
  }
}
