package dev.kvasir.lab;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Kvasir;
import dev.kvasir.Side;
import dev.kvasir.calibrate.SpectralCalibrator;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.lab.evaluate.ProgressBar;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Spectral;
import dev.kvasir.method.Uniform;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * One attention layer, kept by methods that need no training, and by Spectral, side by side: memory, time and error of each.
 * Tokens are synthetic, so that it can be as long as one likes.
 */
public final class LayerBench {

  private static final int KV_HEADS = 8;
  private static final int QUERY_HEADS = 32;
  private static final int HEAD_DIM = 128;
  private static final int CHUNK = 512;
  private static final int QUERIES = 16;
  private static final int CALIBRATION_TOKENS = 2048;
  private static final int CALIBRATION_QUERIES = 256;
  private static final long SEED = 1;

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(QUERY_HEADS).kvHeads(KV_HEADS).headDim(HEAD_DIM).build();

  private final PrintStream out;
  private final int tokens;
  private final double seconds;

  private LayerBench(PrintStream out, int tokens, double seconds) {
    this.out = out;
    this.tokens = tokens;
    this.seconds = seconds;
  }

  /** Fills the caches and measures for so many seconds. */
  public static void run(PrintStream out, int tokens, double seconds) {
    new LayerBench(out, tokens, seconds).run();
  }

  /** A cache that takes part in the comparison. */
  private record Entry(String label, KvCache cache, KvSequence sequence, long[] appendNanos) {

    static Entry of(String label, KvMethod method) {
      KvCache cache = KvCache.builder(GEOMETRY).method(method).build();
      return new Entry(label, cache, cache.newSequence(), new long[1]);
    }

    void append(float[] keys, float[] values, int count) {
      long start = System.nanoTime();
      sequence.append(0, keys, values, count);
      appendNanos[0] += System.nanoTime() - start;
    }

    float[] attend(float[] query) {
      float[] output = new float[query.length];
      sequence.attend(0, query, output);
      return output;
    }
  }

  private void run() {
    SyntheticTokens source = new SyntheticTokens(SEED, QUERY_HEADS, KV_HEADS, HEAD_DIM);
    List<Entry> entries = new ArrayList<>();
    try {
      entries.add(Entry.of("16-bit", new HalfPrecision()));
      for (int bits : new int[] {8, 4, 3, 2, 1}) {
        entries.add(Entry.of(bits + "-bit", Uniform.bits(bits)));
      }
      entries.add(Entry.of("pattern-2", PatternKv.bits(2)));
      entries.add(Entry.of("pm-kvq-2", PmKvq.floor(2).startBits(2)));
      entries.add(Entry.of("mix-2.7", MixKvq.budget(2.7)));
      SpectralBases bases = bases(source);
      for (double bits : new double[] {3, 2, 1.25}) {
        entries.add(Entry.of("spectral-" + (bits % 1 == 0 ? "" + (int) bits : "" + bits), Spectral.of(bases, bits)));
      }
      introduce();
      fill(source, entries);
      compare(source, entries);
    } finally {
      entries.forEach(entry -> entry.cache().close());
    }
  }

  /** From tokens of the same source that no cache gets. */
  private static SpectralBases bases(SyntheticTokens source) {
    SpectralCalibrator calibrator = new SpectralCalibrator(GEOMETRY);
    float[] keys = new float[CALIBRATION_TOKENS * GEOMETRY.rowSize(0)];
    float[] values = new float[keys.length];
    source.fill(keys, values);
    calibrator.addRows(0, Side.KEYS, keys, CALIBRATION_TOKENS);
    calibrator.addRows(0, Side.VALUES, values, CALIBRATION_TOKENS);
    for (int i = 0; i < CALIBRATION_QUERIES; i++) {
      calibrator.addQueries(0, source.query(), 1);
    }
    return calibrator.bases();
  }

  private void introduce() {
    print("Kvasir %s: the KV cache of one attention layer, %,d tokens long, by method.", Kvasir.version(), tokens);
    print("%d kv heads, %d query heads, %d channels; synthetic keys with clusters and outlier channels.",
        KV_HEADS, QUERY_HEADS, HEAD_DIM);
    print("Kernels: %s on %d threads.", Kvasir.defaultBackend(), Kvasir.threads());
    print("");
  }

  /** Gives every cache the same tokens. */
  private void fill(SyntheticTokens source, List<Entry> entries) {
    ProgressBar bar = new ProgressBar(out, ProgressBar.onTerminal());
    for (int done = 0; done < tokens; done += CHUNK) {
      int count = Math.min(CHUNK, tokens - done);
      float[] keys = new float[count * GEOMETRY.rowSize(0)];
      float[] values = new float[count * GEOMETRY.rowSize(0)];
      source.fill(keys, values);
      for (Entry entry : entries) {
        entry.append(keys, values, count);
      }
      bar.show(done + count, tokens, "fills the caches");
    }
    bar.end();
  }

  private void compare(SyntheticTokens source, List<Entry> entries) {
    List<float[]> queries = new ArrayList<>();
    for (int i = 0; i < QUERIES; i++) {
      queries.add(source.query());
    }
    double[] micros = microsPerStep(entries, queries);
    print("                stored bits   memory     times   appended   attention    times   output");
    print("        cache   per element      MiB   smaller   tokens/s     us/step   faster    error");
    Entry reference = entries.get(0);
    for (int i = 0; i < entries.size(); i++) {
      Entry entry = entries.get(i);
      KvStats stats = entry.cache().stats();
      print(
          "%13s %13.2f %8.1f %9.1f %10.0f %11.0f %8.1f %7.2f%%",
          entry.label(),
          stats.total().bitsPerElement(),
          stats.bytes() / (double) (1 << 20),
          (double) reference.cache().stats().bytes() / stats.bytes(),
          tokens / (entry.appendNanos()[0] / 1e9),
          micros[i],
          micros[0] / micros[i],
          100 * relativeError(reference, entry, queries));
    }
    print("");
    print("stored bits    all of them: codes, scales, and the newest tokens, which wait in 16 bits");
    print("appended       tokens that a layer takes in a second, compressed; a model has many layers");
    print("us/step        one new token's attention over the whole cache, computed on the packed data");
    print("output error   length of the difference from the 16-bit output, relative to that output");
  }

  /** The median time of one step of each. They take turns, so that a busy machine is hard on all of them alike. */
  private double[] microsPerStep(List<Entry> entries, List<float[]> queries) {
    FloatBuffer query = direct(queries.get(0).length);
    FloatBuffer output = direct(queries.get(0).length);
    List<List<Double>> times = new ArrayList<>();
    entries.forEach(entry -> times.add(new ArrayList<>()));
    long end = System.nanoTime() + (long) (seconds * 1e9);
    for (int round = 0; System.nanoTime() < end || round < 3; round++) {
      query.put(0, queries.get(round % queries.size()));
      for (int i = 0; i < entries.size(); i++) {
        long start = System.nanoTime();
        entries.get(i).sequence().attend(0, query, output);
        times.get(i).add((System.nanoTime() - start) / 1e3);
      }
    }
    return times.stream().mapToDouble(LayerBench::median).toArray();
  }

  private static double median(List<Double> times) {
    return times.stream().sorted().skip(times.size() / 2).findFirst().orElseThrow();
  }

  private static double relativeError(Entry reference, Entry entry, List<float[]> queries) {
    double difference = 0;
    double length = 0;
    for (float[] query : queries) {
      float[] expected = reference.attend(query);
      float[] actual = entry.attend(query);
      for (int i = 0; i < expected.length; i++) {
        difference += Math.pow(expected[i] - actual[i], 2);
        length += Math.pow(expected[i], 2);
      }
    }
    return Math.sqrt(difference / length);
  }

  private static FloatBuffer direct(int count) {
    return ByteBuffer.allocateDirect(count * Float.BYTES).order(ByteOrder.nativeOrder()).asFloatBuffer();
  }

  private void print(String format, Object... arguments) {
    out.println(String.format(Locale.ROOT, format, arguments));
  }
}
