package dev.kvasir.prefix;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;

/** A model whose rows say which tokens came before: what was reused wrongly gives other attention. */
public final class FakeModel {

  private FakeModel() {}

  /** Appends the rows of tokens from.. to-1 of a text. */
  public static void read(KvSequence sequence, int[] tokens, int from, int to) {
    KvGeometry geometry = sequence.cache().geometry();
    long state = 17;
    long[] states = new long[to];
    for (int i = 0; i < to; i++) {
      state = mix(state + tokens[i]);
      states[i] = state;
    }
    for (int layer = 0; layer < geometry.layers(); layer++) {
      int row = geometry.rowSize(layer);
      float[][] sides = new float[2][(to - from) * row];
      for (int side = 0; side < 2; side++) {
        for (int i = 0; i < (to - from) * row; i++) {
          long bits = mix(states[from + i / row] + 31L * (i % row) + 7919L * layer + 104729L * side);
          sides[side][i] = (bits >> 40) / (float) (1 << 22);
        }
      }
      if (to > from) {
        sequence.append(layer, sides[0], sides[1], to - from);
      }
    }
  }

  /** Attention of all layers with queries that are the same each time. */
  public static float[] attend(KvSequence sequence) {
    KvGeometry geometry = sequence.cache().geometry();
    int size = geometry.querySize(0);
    float[] all = new float[geometry.layers() * size];
    for (int layer = 0; layer < geometry.layers(); layer++) {
      float[] query = new float[size];
      for (int i = 0; i < size; i++) {
        query[i] = (mix(i + 1000L * layer) >> 40) / (float) (1 << 22);
      }
      float[] output = new float[size];
      sequence.attend(layer, query, output);
      System.arraycopy(output, 0, all, size * layer, size);
    }
    return all;
  }

  /** A sequence that read a text and was cut. */
  public static KvSequence cut(KvCache cache, int[] tokens, int length) {
    KvSequence sequence = cache.newSequence();
    read(sequence, tokens, 0, tokens.length);
    sequence.truncate(length);
    return sequence;
  }

  private static long mix(long z) {
    z += 0x9E3779B97F4A7C15L;
    z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
    z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
    return z ^ (z >>> 31);
  }
}
