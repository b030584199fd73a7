package dev.kvasir.method;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.AnyMethod;
import dev.kvasir.CodecChoice;
import dev.kvasir.CodecInfo;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Kvasir;
import dev.kvasir.Side;
import dev.kvasir.Testing;
import dev.kvasir.error.NotFiniteException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

class MixKvqTest {

  private static final int QUERY_HEADS = 4;
  private static final int KV_HEADS = 2;
  private static final int DIM = 128;

  private static KvCache cache(KvMethod method) {
    KvGeometry geometry =
        KvGeometry.builder().layers(1).queryHeads(QUERY_HEADS).kvHeads(KV_HEADS).headDim(DIM).build();
    return KvCache.builder(geometry).method(method).build();
  }

  private static float[] rows(int tokens) {
    return Testing.gaussian(new Random(5), tokens * KV_HEADS * DIM);
  }

  /** Queries that look at every sixteenth channel a hundred times as hard as at the others. */
  private static float[] queries(int tokens) {
    float[] queries = new float[tokens * QUERY_HEADS * DIM];
    for (int i = 0; i < queries.length; i++) {
      queries[i] = i % 16 == 3 ? 100 : -1;
    }
    return queries;
  }

  @Test
  void settingsReachTheCodecs() {
    MixKvq paper = MixKvq.of(MixKvq.PaperModel.R1_LLAMA_8B);
    assertEquals(MixKvq.thresholds(1.44, 0.79).grid(Grid.ENDS).sinks(32), paper);
    assertEquals(4, MixKvq.thresholds(1.44, 0.79).sinks());
    assertEquals(1.0, MixKvq.budget(2.7).keys(0).options().get("grid"));
    assertEquals(1.0, MixKvq.budget(2.7).values(0).options().get("grid"));
    assertEquals(32, paper.sinks());
    assertEquals(0, paper.window());
    assertEquals(
        new CodecChoice(
            "tiered",
            2,
            Map.of("mode", 0.0, "tau16", 1.44, "tau4", 0.79, "queries", 1.0, "group", 32.0, "grid", 0.0)),
        paper.keys(3));
    assertEquals(new CodecChoice("uniform", 2, Map.of("group", 32.0, "grid", 0.0)), paper.values(3));
    MixKvq other =
        MixKvq.budget(3.5).queryAware(false).keyGroup(64).valueBits(4).valueGroup(0).window(128).sinks(5);
    assertEquals(
        new CodecChoice("tiered", 2, Map.of("mode", 2.0, "key_bits", 3.5, "queries", 0.0, "group", 64.0, "grid", 1.0)),
        other.keys(0));
    assertEquals(other.keys(0).with("parameter_bits", 8), other.keyParameterBits(8).keys(0));
    assertEquals(CodecChoice.of("uniform", 4).with("grid", 0), other.values(0));
    assertEquals(128, other.window());
    assertEquals(5, other.sinks());
    assertEquals(1.0, paper.mode(MixKvq.Mode.ABSOLUTE).keys(0).options().get("mode"));
    assertEquals("mix-k2.7v2", MixKvq.budget(2.7).name());
    assertEquals("mix-k(1.44,0.79)v2", paper.name());
    for (MixKvq.PaperModel preset : MixKvq.PaperModel.values()) {
      try (KvCache cache = cache(MixKvq.of(preset))) {
        assertEquals(0, cache.stats().bytes());
      }
    }
  }

  @Test
  void numbersOutOfRangeAreNamed() {
    MixKvq method = MixKvq.budget(2.7);
    for (double bits : new double[] {1.99, 16.01, -1, Double.NaN}) {
      assertNames(assertThrows(IllegalArgumentException.class, () -> MixKvq.budget(bits)), "averageKeyBits", bits);
    }
    for (double tau : new double[] {-0.1, Double.NaN, Double.POSITIVE_INFINITY}) {
      assertNames(assertThrows(IllegalArgumentException.class, () -> MixKvq.thresholds(tau, 1)), "tau16", tau);
      assertNames(assertThrows(IllegalArgumentException.class, () -> MixKvq.thresholds(1, tau)), "tau4", tau);
    }
    for (int bits : new int[] {0, 5, 17}) {
      assertNames(assertThrows(IllegalArgumentException.class, () -> method.valueBits(bits)), "valueBits", bits);
    }
    assertNames(assertThrows(IllegalArgumentException.class, () -> method.keyGroup(48)), "keyGroup", 48);
    assertNames(
        assertThrows(IllegalArgumentException.class, () -> method.keyParameterBits(4)), "keyParameterBits", 4);
    assertNames(assertThrows(IllegalArgumentException.class, () -> method.valueGroup(-1)), "valueGroup", -1);
    assertNames(assertThrows(IllegalArgumentException.class, () -> method.window(-1)), "window", -1);
    assertNames(assertThrows(IllegalArgumentException.class, () -> method.sinks(-1)), "sinks", -1);
    assertThrows(NullPointerException.class, () -> method.mode(null));
  }

  @Test
  void theCodecIsForKeysAlone() {
    CodecInfo tiered =
        Kvasir.codecs().stream().filter(codec -> codec.name().equals("tiered")).findFirst().orElseThrow();
    assertEquals(Set.of(Side.KEYS), tiered.sides());
    CodecInfo uniform =
        Kvasir.codecs().stream().filter(codec -> codec.name().equals("uniform")).findFirst().orElseThrow();
    assertEquals(Set.of(Side.KEYS, Side.VALUES), uniform.sides());
    assertNames(
        assertThrows(
            IllegalArgumentException.class, () -> cache(new AnyMethod(CodecChoice.of("tiered", 2), 0, 0))),
        "tiered", "values");
  }

  @Test
  @Tag("jnicheck")
  void statsShowTiersAndBits() {
    try (KvCache cache = cache(MixKvq.budget(2.7).sinks(0));
        KvSequence sequence = cache.newSequence()) {
      sequence.observe(0, queries(2), 2);
      sequence.append(0, rows(256), rows(256), 256);
      KvStats.Layer layer = cache.stats().layers().get(0);
      long channels = 2L * KV_HEADS * DIM;
      assertEquals(Set.of(2, 4, 16), layer.keyChannels().keySet());
      assertEquals(channels, layer.keyChannels().values().stream().mapToLong(Long::longValue).sum());
      assertEquals(Map.of(2, channels), layer.valueChannels());
      double bits =
          layer.keyChannels().entrySet().stream().mapToDouble(each -> each.getKey() * each.getValue()).sum();
      assertEquals(bits / channels, layer.keyBits(), 1e-9);
      assertEquals(2.7, layer.keyBits(), 0.05);
      assertEquals(2, layer.valueBits());
      long bytes = 0;
      for (int page = 0; page < 2; page++) {
        for (int head = 0; head < KV_HEADS; head++) {
          byte[] part = sequence.readPage(0, page, Side.KEYS, head);
          bytes += part.length;
          // Every channel that queries look at is among the wider ones.
          int wide = (part[0] & 0xFF) + (part[2] & 0xFF);
          byte[] first = Arrays.copyOfRange(part, 4, 4 + wide);
          for (int channel = 3; channel < DIM; channel += 16) {
            int wanted = channel;
            assertTrue(contains(first, wanted), () -> "channel " + wanted + " has 2 bits");
          }
        }
      }
      assertEquals(8.0 * bytes / (128 * channels), layer.keyBitsPerElement(), 1e-9);
      assertEquals(3.0, layer.valueBitsPerElement(), 1e-9);
      assertEquals(layer.keyChannels(), cache.stats().total().keyChannels());
    }
  }

  private static boolean contains(byte[] channels, int wanted) {
    for (byte channel : channels) {
      if ((channel & 0xFF) == wanted) {
        return true;
      }
    }
    return false;
  }

  @Test
  @Tag("jnicheck")
  void queriesAreSeenHoweverTheyCome() {
    float[] rows = rows(128);
    float[] queries = queries(3);
    FloatBuffer direct =
        ByteBuffer.allocateDirect(4 * queries.length).order(ByteOrder.nativeOrder()).asFloatBuffer().put(queries);
    direct.flip();
    try (KvCache cache = cache(MixKvq.budget(3).sinks(0));
        KvSequence array = cache.newSequence();
        KvSequence buffer = cache.newSequence();
        KvSequence heap = cache.newSequence();
        KvSequence batch = cache.newSequence();
        KvSequence attended = cache.newSequence();
        KvSequence none = cache.newSequence()) {
      array.observe(0, queries, 3);
      buffer.observe(0, direct, 3);
      heap.observe(0, FloatBuffer.wrap(queries), 3);
      cache.observe(0, List.of(batch, batch, batch), queries, 1);
      float[] first = Arrays.copyOf(rows, 3 * KV_HEADS * DIM);
      float[] rest = Arrays.copyOfRange(rows, first.length, rows.length);
      attended.append(0, first, first, 3);
      attended.attend(0, queries, new float[queries.length], 3);
      attended.append(0, rest, rest, 125);
      for (KvSequence sequence : List.of(array, buffer, heap, batch, none)) {
        sequence.append(0, rows, rows, 128);
      }
      byte[] expected = array.readPage(0, 0, Side.KEYS, 1);
      for (KvSequence sequence : List.of(buffer, heap, batch, attended)) {
        assertArrayEquals(expected, sequence.readPage(0, 0, Side.KEYS, 1));
      }
      assertNotEquals(Arrays.toString(expected), Arrays.toString(none.readPage(0, 0, Side.KEYS, 1)));
    }
  }

  @Test
  void observeChecksItsArguments() {
    try (KvCache cache = cache(MixKvq.budget(3));
        KvCache other = cache(Uniform.bits(2));
        KvSequence sequence = cache.newSequence();
        KvSequence foreign = other.newSequence()) {
      float[] queries = queries(1);
      assertThrows(IllegalArgumentException.class, () -> sequence.observe(1, queries, 1));
      assertThrows(IllegalArgumentException.class, () -> sequence.observe(0, queries, 0));
      assertThrows(IllegalArgumentException.class, () -> sequence.observe(0, queries, 2));
      assertThrows(IllegalArgumentException.class, () -> cache.observe(0, List.of(), queries, 1));
      assertThrows(IllegalArgumentException.class, () -> cache.observe(0, List.of(foreign), queries, 1));
      queries[7] = Float.NaN;
      assertThrows(NotFiniteException.class, () -> sequence.observe(0, queries, 1));
      // Methods that do not go by queries have nothing to keep of them.
      foreign.observe(0, queries(1), 1);
      assertEquals(0, other.stats().bytes());
      sequence.close();
      assertThrows(IllegalStateException.class, () -> sequence.observe(0, queries(1), 1));
    }
  }
}
