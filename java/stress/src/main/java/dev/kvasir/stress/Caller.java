package dev.kvasir.stress;

import dev.kvasir.ElementType;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvException;
import dev.kvasir.error.NotFiniteException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/** One thread's random life with a cache: right calls, wrong calls, and after each a look at what should have come of it. */
final class Caller {

  private static final int MAX_SEQUENCES = 4;
  /** That a caller has at once: its own, and a fork that it tries things on. */
  static final int MOST_SEQUENCES = MAX_SEQUENCES + 1;
  private static final int MAX_LENGTH = 900;

  private final KvCache cache;
  private final KvGeometry geometry;
  private final Random random;
  private final double scale;
  private final List<Mirror> mirrors = new ArrayList<>();
  private long calls;

  Caller(KvCache cache, Random random) {
    this.cache = cache;
    this.geometry = cache.geometry();
    this.random = random;
    this.scale = Math.pow(10, random.nextDouble() * 3 - 2);
  }

  /** So many steps, or until the deadline or the cache's end; returns the number of calls made. */
  long live(int steps, long deadline) {
    try {
      for (int step = 0; step < steps && System.nanoTime() < deadline; step++) {
        step();
      }
      for (Mirror mirror : mirrors) {
        mirror.check(random.nextInt(geometry.layers()), random);
        mirror.sequence.close();
      }
    } catch (IllegalStateException e) {
      // The round closed the cache, which is the only way to be told so here.
      Violation.unless(String.valueOf(e.getMessage()).contains("closed"), "an unexpected " + e);
    }
    return calls;
  }

  private void step() {
    if (mirrors.isEmpty()) {
      mirrors.add(new Mirror(cache.newSequence(), scale));
    }
    Mirror mirror = mirrors.get(random.nextInt(mirrors.size()));
    calls++;
    switch (random.nextInt(12)) {
      case 0 -> fork(mirror);
      case 1 -> truncate(mirror);
      case 2 -> close(mirror);
      case 3 -> mistake(mirror);
      case 4 -> restlessBuffer(mirror);
      case 5 -> attendAll();
      case 6 -> observe(mirror);
      case 7 -> cache.stats();
      default -> append(mirror);
    }
    if (mirrors.contains(mirror)) {
      mirror.checkLengths();
      if (random.nextInt(6) == 0) {
        mirror.check(random.nextInt(geometry.layers()), random);
      }
    }
  }

  private void append(Mirror mirror) {
    int tokens = 1 + random.nextInt(random.nextBoolean() ? 4 : 300);
    for (int layer = 0; layer < geometry.layers(); layer++) {
      if (mirror.length(layer) + tokens > MAX_LENGTH) {
        return;
      }
      float[] keys = rows(layer, tokens);
      float[] values = rows(layer, tokens);
      try {
        append(mirror.sequence, layer, keys, values, tokens);
      } catch (BudgetExceededException e) {
        mirror.checkLengths();
        truncate(mirror, shortest(mirror)); // as its documentation says
        return;
      }
      mirror.appended(layer, keys, values, tokens);
    }
  }

  private void append(KvSequence sequence, int layer, float[] keys, float[] values, int tokens) {
    switch (random.nextInt(3)) {
      case 0 -> sequence.append(layer, keys, values, tokens);
      case 1 -> sequence.append(layer, direct(keys), direct(values), tokens);
      default -> sequence.append(layer, brainFloats(keys), brainFloats(values), tokens, ElementType.BFLOAT16);
    }
  }

  private int shortest(Mirror mirror) {
    int shortest = Integer.MAX_VALUE;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      shortest = Math.min(shortest, mirror.length(layer));
    }
    return shortest;
  }

  private void fork(Mirror mirror) {
    if (mirrors.size() < MAX_SEQUENCES) {
      try {
        mirrors.add(mirror.forked(mirror.sequence.fork()));
      } catch (BudgetExceededException e) {
        mirror.checkLengths();
      }
    }
  }

  private void truncate(Mirror mirror) {
    truncate(mirror, random.nextInt(shortest(mirror) + 2));
  }

  private void truncate(Mirror mirror, int length) {
    try {
      mirror.sequence.truncate(length);
    } catch (IllegalArgumentException e) {
      boolean slides = false;
      for (int layer = 0; layer < geometry.layers(); layer++) {
        slides |= geometry.slidingWindow(layer) > 0;
      }
      Violation.unless(slides, "a sequence without a sliding window can be cut anywhere, but: " + e.getMessage());
      return;
    }
    mirror.truncated(length);
  }

  private void close(Mirror mirror) {
    mirrors.remove(mirror);
    mirror.sequence.close();
    mirror.sequence.close();
    expect("a closed sequence", () -> mirror.sequence.length(0), IllegalStateException.class);
  }

  private void observe(Mirror mirror) {
    int layer = random.nextInt(geometry.layers());
    int tokens = 1 + random.nextInt(3);
    try {
      mirror.sequence.observe(layer, Recipes.gaussian(random, tokens * geometry.querySize(layer), 1), tokens);
    } catch (BudgetExceededException e) {
      mirror.checkLengths();
    }
  }

  /** One batch over all sequences that have tokens: each gets what it gets alone. */
  private void attendAll() {
    int layer = random.nextInt(geometry.layers());
    List<KvSequence> sequences = new ArrayList<>();
    for (Mirror mirror : mirrors) {
      if (mirror.length(layer) > 0) {
        sequences.add(mirror.sequence);
      }
    }
    if (sequences.isEmpty()) {
      return;
    }
    int size = geometry.querySize(layer);
    float[] queries = Recipes.gaussian(random, sequences.size() * size, 1 / scale);
    FloatBuffer outputs = direct(new float[queries.length]);
    cache.attend(layer, sequences, direct(queries), outputs);
    for (int i = 0; i < queries.length; i++) {
      Violation.unless(Float.isFinite(outputs.get(i)), "an output of a batch is " + outputs.get(i));
    }
  }

  /** A call that nobody should make: it throws what it should, and nothing has changed, which the caller checks. */
  private void mistake(Mirror mirror) {
    KvSequence sequence = mirror.sequence;
    int layer = random.nextInt(geometry.layers());
    float[] rows = rows(layer, 2);
    float[] query = new float[geometry.querySize(layer)];
    int wrong = random.nextBoolean() ? -1 - random.nextInt(5) : geometry.layers() + random.nextInt(1 << 30);
    Class<?> argument = IllegalArgumentException.class;
    switch (random.nextInt(11)) {
      case 0 -> expect("a layer " + wrong, () -> sequence.append(wrong, rows, rows, 1), argument);
      case 1 -> expect("a short array", () -> sequence.append(layer, rows, rows, 3), argument);
      case 2 -> expect("no tokens", () -> sequence.append(layer, rows, rows, -random.nextInt(9)), argument);
      case 3 -> {
        float[] bad = rows.clone();
        float[] values = {Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY, 40000, -1e30f};
        bad[random.nextInt(bad.length)] = values[random.nextInt(values.length)];
        boolean inKeys = random.nextBoolean();
        expect(
            "what is not finite",
            () -> sequence.append(layer, inKeys ? bad : rows, inKeys ? rows : bad, 2),
            NotFiniteException.class);
      }
      case 4 -> expect("null", () -> sequence.append(layer, (float[]) null, rows, 1), NullPointerException.class);
      case 5 -> expect("a short output", () -> sequence.attend(layer, query, new float[query.length - 1]), argument);
      case 6 -> expect("tokens from beyond", () -> sequence.read(layer, null, 0, 1), NullPointerException.class, argument);
      case 7 -> {
        FloatBuffer foreign = ByteBuffer.allocateDirect(rows.length * 4).order(ByteOrder.BIG_ENDIAN).asFloatBuffer();
        expect("the other byte order", () -> sequence.append(layer, foreign, foreign, 1), argument);
      }
      case 8 -> {
        FloatBuffer output = direct(query).asReadOnlyBuffer();
        expect("a read-only output", () -> sequence.attend(layer, direct(query), output), argument);
      }
      case 9 -> expect("so many tokens", () -> sequence.append(layer, rows, rows, Integer.MAX_VALUE), argument);
      default -> expect("a negative length", () -> sequence.truncate(-1L - random.nextInt(9)), argument);
    }
  }

  /** Appends from memory that another thread writes NaN to: what is stored, if it is, are numbers. */
  private void restlessBuffer(Mirror mirror) {
    int tokens = 1 + random.nextInt(200);
    FloatBuffer keys = direct(rows(0, tokens));
    FloatBuffer values = direct(rows(0, tokens));
    if (mirror.length(0) + tokens > MAX_LENGTH) {
      return;
    }
    int at = random.nextInt(keys.limit());
    FloatBuffer spoilt = random.nextBoolean() ? keys : values;
    float good = spoilt.get(at);
    Thread vandal =
        new Thread(
            () -> {
              while (!Thread.interrupted()) {
                spoilt.put(at, Float.NaN);
                spoilt.put(at, good);
              }
            });
    vandal.start();
    try (KvSequence victim = mirror.sequence.fork()) {
      victim.append(0, keys, values, tokens);
      float[] output = new float[geometry.querySize(0)];
      victim.attend(0, Recipes.gaussian(random, output.length, 1 / scale), output);
      for (float element : output) {
        Violation.unless(Float.isFinite(element), "NaN was stored");
      }
    } catch (NotFiniteException | BudgetExceededException e) {
      mirror.checkLengths();
    } finally {
      vandal.interrupt();
      try {
        vandal.join();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** The call throws one of these, or says that the cache was closed meanwhile. */
  private static void expect(String what, Runnable call, Class<?>... types) {
    try {
      call.run();
    } catch (RuntimeException e) {
      for (Class<?> type : types) {
        if (type.isInstance(e)) {
          return;
        }
      }
      if (e instanceof IllegalStateException && !(e instanceof KvException)) {
        throw e;
      }
      throw new Violation(what + " is refused by " + e, e);
    }
    throw new Violation(what + " is accepted");
  }

  private float[] rows(int layer, int tokens) {
    float[] rows = Recipes.gaussian(random, tokens * geometry.rowSize(layer), scale);
    for (int i = 0; i < rows.length; i++) { // numbers that all three element types have
      rows[i] = Float.intBitsToFloat(Float.floatToRawIntBits(rows[i]) & 0xFFFF0000);
    }
    return rows;
  }

  private static FloatBuffer direct(float[] data) {
    return ByteBuffer.allocateDirect(data.length * Float.BYTES)
        .order(ByteOrder.nativeOrder())
        .asFloatBuffer()
        .put(0, data);
  }

  private static ShortBuffer brainFloats(float[] data) {
    short[] bits = new short[data.length];
    for (int i = 0; i < data.length; i++) {
      bits[i] = (short) (Float.floatToRawIntBits(data[i]) >>> 16);
    }
    return ByteBuffer.allocateDirect(2 * bits.length).order(ByteOrder.nativeOrder()).asShortBuffer().put(0, bits);
  }
}
