package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.method.Uniform;
import java.lang.ref.WeakReference;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class LifecycleTest {

  private static final int QUERY = 128;

  private final float[] rows = Testing.gaussian(new Random(4), 300 * 64);

  private static KvCache cache() {
    return Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
  }

  private void assertClosed(KvSequence sequence) {
    float[] output = new float[QUERY];
    List<Executable> calls =
        List.of(
            () -> sequence.append(0, rows, rows, 1),
            () -> sequence.append(0, Testing.direct(rows), Testing.direct(rows), 1),
            () ->
                sequence.append(
                    0, Testing.direct(new short[64]), Testing.direct(new short[64]), 1, ElementType.FLOAT16),
            () -> sequence.attend(0, rows, output),
            () -> sequence.attend(0, Testing.direct(rows), Testing.direct(QUERY)),
            () -> sequence.attend(0, rows, output, 1),
            sequence::fork,
            () -> sequence.truncate(0),
            () -> sequence.length(0),
            sequence::length,
            () -> sequence.read(0, Side.KEYS, 0, 1),
            () -> sequence.pageCount(0),
            () -> sequence.readPage(0, 0, Side.KEYS, 0));
    for (Executable call : calls) {
      assertThrows(IllegalStateException.class, call);
    }
  }

  @Test
  @Tag("jnicheck")
  void aClosedSequenceIsOfNoUse() {
    try (KvCache cache = cache()) {
      KvSequence sequence = cache.newSequence();
      KvSequence other = cache.newSequence();
      sequence.append(0, rows, rows, 300);
      other.append(0, rows, rows, 300);
      sequence.close();
      assertClosed(sequence);
      assertThrows(
          IllegalStateException.class,
          () -> cache.attend(0, List.of(other, sequence), new float[2 * QUERY], new float[2 * QUERY]));
      sequence.close();
      assertEquals(1, cache.stats().sequences());
      assertEquals(300, other.length(0));
      Testing.assertNames(new Exception(sequence.toString()), "closed");
    }
  }

  @Test
  @Tag("jnicheck")
  void aClosedCacheTakesItsSequencesAlong() {
    KvCache cache = cache();
    KvSequence sequence = cache.newSequence();
    sequence.append(0, rows, rows, 300);
    cache.close();
    assertClosed(sequence);
    assertThrows(IllegalStateException.class, cache::newSequence);
    assertThrows(IllegalStateException.class, cache::stats);
    assertThrows(
        IllegalStateException.class, () -> cache.attend(0, List.of(sequence), new float[QUERY], new float[QUERY]));
    sequence.close();
    sequence.close();
    cache.close();
    assertEquals(2, cache.geometry().layers());
    assertEquals(Uniform.bits(2), cache.method());
    Testing.assertNames(new Exception(cache.toString()), "closed");
  }

  @Test
  void forksOutliveTheirOrigin() {
    try (KvCache cache = cache()) {
      KvSequence origin = cache.newSequence();
      origin.append(0, rows, rows, 300);
      float[] expected = origin.read(0, Side.VALUES, 0, 300);
      long pages = cache.stats().total().pages();
      try (KvSequence fork = origin.fork()) {
        assertEquals(pages, cache.stats().total().pages());
        origin.close();
        assertEquals(pages, cache.stats().total().pages());
        assertArrayEquals(expected, fork.read(0, Side.VALUES, 0, 300));
      }
      assertEquals(0, cache.stats().bytes());
      assertEquals(0, cache.stats().sequences());
    }
  }

  @Test
  void forgottenSequencesAreReleased() throws InterruptedException {
    try (KvCache cache = cache()) {
      leakSequences(cache, 20);
      assertEquals(20, cache.stats().sequences());
      assertTrue(eventually(() -> cache.stats().sequences() == 0), "sequences were not released");
      assertEquals(0, cache.stats().bytes());
    }
  }

  private void leakSequences(KvCache cache, int count) {
    for (int i = 0; i < count; i++) {
      cache.newSequence().append(0, rows, rows, 10);
    }
  }

  @Test
  void forgottenCachesDoNotStandInTheWay() throws InterruptedException {
    WeakReference<KvCache> leaked = new WeakReference<>(leakCache());
    assertTrue(eventually(() -> leaked.get() == null), "the cache was not collected");
  }

  private KvCache leakCache() {
    KvCache cache = cache();
    leakSequences(cache, 3);
    return cache;
  }

  @Test
  void anOpenSequenceKeepsItsCache() {
    KvSequence sequence = cache().newSequence();
    for (int i = 0; i < 3; i++) {
      System.gc();
      sequence.append(0, rows, rows, 100);
    }
    assertEquals(300, sequence.length(0));
    sequence.cache().close();
  }

  private interface Condition {
    boolean holds();
  }

  private static boolean eventually(Condition condition) throws InterruptedException {
    for (int i = 0; i < 100; i++) {
      System.gc();
      Thread.sleep(20);
      if (condition.holds()) {
        return true;
      }
    }
    return false;
  }
}
