package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.Uniform;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Random lives of forking, growing, shrinking sequences against lists of rows. */
class ModelTest {

  private static final int MAX_LENGTH = 1200;
  private static final int MAX_SEQUENCES = 6;

  /** A plain layer, one that slides over more than a page, one that slides over less, all of different shapes. */
  private static KvGeometry geometry() {
    return KvGeometry.builder()
        .layers(3)
        .queryHeads(4)
        .kvHeads(2)
        .headDim(32)
        .queryHeads(1, 3)
        .kvHeads(1, 1)
        .headDim(1, 48)
        .slidingWindow(1, 200)
        .slidingWindow(2, 50)
        .build();
  }

  @Test
  @Tag("jnicheck")
  void withoutWindowAndSinks() {
    live(0, 0, 120);
  }

  @Test
  void withWindowAndSinks() {
    live(37, 5, 120);
    live(128, 4, 120);
  }

  @Test
  void withMoreSinksThanAPage() {
    live(0, 130, 120);
  }

  private void live(int window, int sinks, int steps) {
    Random random = Testing.random("ModelTest window " + window + " sinks " + sinks);
    KvMethod method = new AnyMethod(AnyMethod.F16, window, sinks);
    try (KvCache cache = Testing.cache(geometry()).method(method).build()) {
      List<PlainSequence> sequences = new ArrayList<>();
      sequences.add(new PlainSequence(cache.newSequence()));
      for (int step = 0; step < steps; step++) {
        PlainSequence one = sequences.get(random.nextInt(sequences.size()));
        String where = step(cache, sequences, one, random) + " at step " + step;
        one.check(random, where);
        sequences.get(random.nextInt(sequences.size())).check(random, "bystander of " + where);
        assertEquals(sequences.size(), cache.stats().sequences(), where);
      }
      for (PlainSequence each : sequences) {
        each.check(random, "at the end");
        each.sequence.close();
      }
      assertEquals(0, cache.stats().bytes());
    }
  }

  /** Does something to a sequence and says what. */
  private String step(KvCache cache, List<PlainSequence> sequences, PlainSequence one, Random random) {
    switch (random.nextInt(8)) {
      case 0:
        if (sequences.size() < MAX_SEQUENCES) {
          long pages = cache.stats().total().pages();
          PlainSequence fork = one.fork();
          sequences.add(fork);
          assertEquals(pages, cache.stats().total().pages(), "a fork shares all pages");
          fork.check(random, "the fork itself");
          return "fork";
        }
        PlainSequence gone = sequences.remove(random.nextInt(sequences.size()));
        if (gone == one) {
          sequences.add(gone);
          return "nothing";
        }
        gone.sequence.close();
        return "close";
      case 1:
        int back = random.nextInt(Math.min(one.length(0), 300) + 1);
        return "truncate by " + back + " " + one.truncate(one.length(0) - back);
      case 2:
        int length = random.nextInt(4) == 0 ? random.nextInt(140) : random.nextInt(one.length(1) + 10);
        return "truncate to " + length + " " + one.truncate(length);
      case 3:
        int layer = random.nextInt(3);
        return append(one, layer, layer + 1, 1 + random.nextInt(10), random);
      case 4:
        return append(one, 0, 3, 1, random);
      default:
        return append(one, 0, 3, 1 + random.nextInt(random.nextBoolean() ? 300 : 40), random);
    }
  }

  private String append(PlainSequence one, int from, int to, int tokens, Random random) {
    if (one.length(0) + tokens > MAX_LENGTH) {
      return "truncate to 3 " + one.truncate(3);
    }
    for (int layer = from; layer < to; layer++) {
      one.append(layer, tokens, random);
    }
    return "append " + tokens + " to layers " + from + " .. " + (to - 1);
  }

  @Test
  void itDoesNotMatterHowAStreamIsCutIntoAppends() {
    Random random = Testing.random("ModelTest cuts");
    KvGeometry geometry = Testing.small();
    int tokens = 700;
    int row = geometry.rowSize(0);
    float[] keys = Testing.gaussian(random, tokens * row);
    float[] values = Testing.gaussian(random, tokens * row);
    for (KvMethod method : List.of(new HalfPrecision(), Uniform.bits(3), Uniform.bits(2).window(100).sinks(7))) {
      try (KvCache cache = Testing.cache(geometry).method(method).build();
          KvSequence whole = cache.newSequence();
          KvSequence cut = cache.newSequence()) {
        whole.append(0, keys, values, tokens);
        for (int done = 0; done < tokens; ) {
          int step = Math.min(1 + random.nextInt(random.nextBoolean() ? 3 : 250), tokens - done);
          cut.append(
              0,
              Arrays.copyOfRange(keys, done * row, (done + step) * row),
              Arrays.copyOfRange(values, done * row, (done + step) * row),
              step);
          done += step;
        }
        assertSamePages(whole, cut);
        for (Side side : Side.values()) {
          assertArrayEquals(whole.read(0, side, 0, tokens), cut.read(0, side, 0, tokens));
        }
      }
    }
  }

  private static void assertSamePages(KvSequence one, KvSequence other) {
    assertEquals(one.pageCount(0), other.pageCount(0));
    for (long page = 0; page < one.pageCount(0); page++) {
      for (Side side : Side.values()) {
        for (int head = 0; head < 2; head++) {
          assertArrayEquals(one.readPage(0, page, side, head), other.readPage(0, page, side, head));
        }
      }
    }
  }
}
