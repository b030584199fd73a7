package dev.kvasir.micrometer;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Testing;
import dev.kvasir.method.Uniform;
import java.util.Random;

/** What the probe costs steps of decoding at 8192 tokens: the shape of an 8B model, 8 of its layers, one thread. */
public final class ProbeCost {

  private static final int LAYERS = 8;
  private static final int TOKENS = 8192;
  private static final int STEPS = 64;

  private ProbeCost() {}

  public static void main(String[] args) {
    KvGeometry geometry = KvGeometry.builder().layers(LAYERS).queryHeads(32).kvHeads(8).headDim(128).build();
    float[] rows = Testing.gaussian(new Random(1), 128 * geometry.rowSize(0));
    float[] query = Testing.gaussian(new Random(2), geometry.querySize(0));
    try (KvCache cache = KvCache.builder(geometry).method(Uniform.bits(4)).threads(1).build()) {
      for (int every : new int[] {0, 64, 16, 1}) {
        try (QualityProbe probe = QualityProbe.on(cache).every(Math.max(1, every)).build();
            KvSequence sequence = cache.newSequence()) {
          for (int i = 0; i < TOKENS / 128; i++) {
            for (int layer = 0; layer < LAYERS; layer++) {
              append(every > 0, probe, sequence, layer, rows, 128);
            }
          }
          float[] output = new float[query.length];
          long start = System.nanoTime();
          for (int i = 0; i < STEPS; i++) {
            for (int layer = 0; layer < LAYERS; layer++) {
              append(every > 0, probe, sequence, layer, rows, 1);
              if (every > 0) {
                probe.attend(sequence, layer, query, output, 1);
              } else {
                sequence.attend(layer, query, output);
              }
            }
          }
          double step = (System.nanoTime() - start) / 1e6 / STEPS;
          System.out.printf(
              "%s: %.3f ms a step, %d samples, error %.4f, %.1f MB kept beside %.1f MB%n",
              every == 0 ? "without the probe" : "every " + every + " steps",
              step, probe.samples(), probe.error(), probe.bytes() / 1e6, cache.stats().bytes() / 1e6);
        }
      }
    }
  }

  private static void append(boolean seen, QualityProbe probe, KvSequence sequence, int layer, float[] rows, int tokens) {
    if (seen) {
      probe.append(sequence, layer, rows, rows, tokens);
    } else {
      sequence.append(layer, rows, rows, tokens);
    }
  }
}
