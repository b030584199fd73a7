package dev.kvasir.method;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.CodecChoice;
import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Side;
import dev.kvasir.Testing;
import java.util.Arrays;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The method PatternKV from settings to statistics. */
class PatternKvTest {

  private static final int ROW = 64;

  /** Rows around ten centres of four deviations; {@code [tokens][2][32]}. */
  private static float[] clusters(int seed, int tokens) {
    Random random = new Random(seed);
    float[] centres = Testing.gaussian(random, 10 * ROW);
    float[] rows = new float[tokens * ROW];
    for (int token = 0; token < tokens; token++) {
      int centre = random.nextInt(10) * ROW;
      for (int c = 0; c < ROW; c++) {
        rows[token * ROW + c] = 4 * centres[centre + c] + (float) random.nextGaussian();
      }
    }
    return rows;
  }

  private static KvCache cache(KvMethod method) {
    return Testing.cache(Testing.small()).method(method).build();
  }

  @Test
  void defaultsAreThePapersButForGridAndSinks() {
    PatternKv method = PatternKv.bits(2);
    assertEquals(
        new CodecChoice(
            "pattern", 2, Map.of("patterns", 32.0, "metric", 0.0, "new_patterns", 1.0, "accept", 1.0, "grid", 1.0)),
        method.keys(0));
    assertEquals(
        new CodecChoice(
            "pattern", 2, Map.of("patterns", 32.0, "metric", 0.0, "new_patterns", 1.0, "alpha", 0.05, "grid", 1.0)),
        method.values(0));
    assertEquals(0, method.window());
    assertEquals(4, method.sinks());
    assertEquals("pattern-k2v2", method.name());
  }

  @Test
  void settingsReachTheCodec() {
    PatternKv method =
        PatternKv.bits(2)
            .keyBits(4)
            .valueBits(3)
            .patterns(16)
            .metric(PatternKv.Metric.EUCLIDEAN)
            .newPatterns(false)
            .keyTest(false)
            .alpha(0)
            .group(32)
            .window(100)
            .sinks(5);
    assertEquals(
        new CodecChoice(
            "pattern",
            4,
            Map.of(
                "patterns", 16.0, "metric", 1.0, "new_patterns", 0.0, "accept", 0.0, "group", 32.0, "grid", 0.0)),
        method.keys(1));
    assertEquals(
        new CodecChoice(
            "pattern",
            3,
            Map.of("patterns", 16.0, "metric", 1.0, "new_patterns", 0.0, "alpha", 0.0, "group", 32.0, "grid", 0.0)),
        method.values(1));
    assertEquals(100, method.window());
    assertEquals(5, method.sinks());
    assertEquals("pattern-k4v3", method.name());
    PatternKv always = method.rawMatches(false);
    assertEquals(method.keys(0).with("raw", 0), always.keys(0));
    assertEquals(method.values(0).with("raw", 0), always.values(0));
    PatternKv without = method.keyPatterns(false).valuePatterns(false);
    assertEquals(new CodecChoice("uniform", 4, Map.of("group", 32.0, "grid", 0.0)), without.keys(0));
    assertEquals(new CodecChoice("uniform", 3, Map.of("group", 32.0, "grid", 0.0)), without.values(0));
    assertEquals(method, without.keyPatterns(true).valuePatterns(true));
  }

  @Test
  void wrongNumbersAreNamed() {
    PatternKv method = PatternKv.bits(2);
    for (int bits : new int[] {0, -1, 5, 7, 16, Integer.MAX_VALUE}) {
      assertNames(assertThrows(IllegalArgumentException.class, () -> PatternKv.bits(bits)), bits);
      assertNames(assertThrows(IllegalArgumentException.class, () -> method.keyBits(bits)), "keyBits", bits);
      assertNames(assertThrows(IllegalArgumentException.class, () -> method.valueBits(bits)), "valueBits", bits);
    }
    for (int patterns : new int[] {1, 0, -1, 65, Integer.MAX_VALUE}) {
      assertNames(assertThrows(IllegalArgumentException.class, () -> method.patterns(patterns)), "patterns", patterns);
    }
    for (double alpha : new double[] {-0.01, 0.5, 1, Double.NaN, Double.POSITIVE_INFINITY}) {
      assertNames(assertThrows(IllegalArgumentException.class, () -> method.alpha(alpha)), "alpha", alpha);
    }
    assertNames(assertThrows(IllegalArgumentException.class, () -> method.group(-1)), "group", -1);
    assertNames(assertThrows(IllegalArgumentException.class, () -> method.window(-1)), "window", -1);
    assertNames(assertThrows(IllegalArgumentException.class, () -> method.sinks(-1)), "sinks", -1);
    assertThrows(NullPointerException.class, () -> method.metric(null));
  }

  @Test
  @Tag("jnicheck")
  void statsTellWhatPatternsCostAndDo() {
    float[] rows = clusters(3, 512);
    try (KvCache cache = cache(PatternKv.bits(2));
        KvSequence sequence = cache.newSequence()) {
      assertEquals(0, sequence.readTable(0, Side.KEYS, 0).length);
      sequence.append(0, rows, rows, 512);
      KvStats.Layer layer = cache.stats().layers().get(0);
      assertEquals(2 * 2 * 32 * 32 * 2, layer.tableBytes()); // sides, heads, patterns, channels, bytes
      assertEquals(layer.pageBytes() + layer.windowBytes() + layer.tableBytes(), layer.bytes());
      assertTrue(layer.keyTableUse() > 0.9, () -> "keys " + layer.keyTableUse());
      assertTrue(layer.valueTableUse() > 0.9, () -> "values " + layer.valueTableUse());
      assertEquals(0, layer.keyPagesWithoutTable());
      assertEquals(0, layer.valuePagesWithoutTable());
      assertEquals(layer, cache.stats().total());
      try (KvSequence fork = sequence.fork()) {
        assertEquals(layer.tableBytes(), cache.stats().total().tableBytes());
        fork.append(0, rows, rows, 128);
        assertEquals(layer.tableBytes() + 2 * 2 * 32 * 2, cache.stats().total().tableBytes());
        assertEquals(33 * 32, fork.readTable(0, Side.VALUES, 1).length);
        assertArrayEquals(
            sequence.readTable(0, Side.VALUES, 1), Arrays.copyOf(fork.readTable(0, Side.VALUES, 1), 32 * 32));
      }
      assertEquals(32 * 32, sequence.readTable(0, Side.VALUES, 1).length);
      sequence.truncate(0);
      assertEquals(0, cache.stats().total().tableBytes());
    }
  }

  @Test
  void sidesWithoutPatternsAreUniform() {
    float[] rows = clusters(3, 300);
    try (KvCache pattern = cache(PatternKv.bits(2).keyPatterns(false));
        KvCache other = cache(PatternKv.bits(2).valuePatterns(false));
        KvCache uniform = cache(Uniform.bits(2));
        KvSequence a = pattern.newSequence();
        KvSequence b = other.newSequence();
        KvSequence c = uniform.newSequence()) {
      a.append(0, rows, rows, 300);
      b.append(0, rows, rows, 300);
      c.append(0, rows, rows, 300);
      assertArrayEquals(c.readPage(0, 1, Side.KEYS, 1), a.readPage(0, 1, Side.KEYS, 1));
      assertArrayEquals(c.readPage(0, 1, Side.VALUES, 1), b.readPage(0, 1, Side.VALUES, 1));
      assertEquals(0, a.readTable(0, Side.KEYS, 0).length);
      assertEquals(32 * 32, a.readTable(0, Side.VALUES, 0).length);
      assertEquals(0, b.readTable(0, Side.VALUES, 0).length);
      assertEquals(0, pattern.stats().total().keyTableUse());
      assertTrue(pattern.stats().total().valueTableUse() > 0.9);
    }
  }

  @Test
  void withoutNewPatternsTheTableStays() {
    float[] rows = clusters(3, 512);
    for (boolean add : new boolean[] {true, false}) {
      try (KvCache cache = cache(PatternKv.bits(2).patterns(10).newPatterns(add));
          KvSequence sequence = cache.newSequence()) {
        sequence.append(0, rows, rows, 256);
        sequence.append(0, rows, rows, 256);
        assertEquals((add ? 12 : 10) * 32, sequence.readTable(0, Side.KEYS, 0).length);
      }
    }
  }

  @Test
  void tablesThatDoNotExist() {
    try (KvCache cache = cache(PatternKv.bits(2));
        KvSequence sequence = cache.newSequence()) {
      for (int layer : new int[] {-1, 2, Integer.MAX_VALUE}) {
        assertNames(
            assertThrows(IllegalArgumentException.class, () -> sequence.readTable(layer, Side.KEYS, 0)), layer);
      }
      for (int head : new int[] {-1, 2, Integer.MAX_VALUE}) {
        assertNames(assertThrows(IllegalArgumentException.class, () -> sequence.readTable(0, Side.KEYS, head)), head);
      }
      assertThrows(NullPointerException.class, () -> sequence.readTable(0, null, 0));
      sequence.close();
      assertThrows(IllegalStateException.class, () -> sequence.readTable(0, Side.KEYS, 0));
    }
  }
}
