package dev.kvasir.foreign;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.AttendBatch;
import dev.kvasir.ChildJvm;
import dev.kvasir.ElementType;
import dev.kvasir.HeldMemory;
import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Rows;
import dev.kvasir.Side;
import dev.kvasir.Testing;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.method.Uniform;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Rows in memory segments: in place, and never in memory that is gone. */
@Timeout(120)
class SegmentsTest {

  private static final int ROW = 64;
  private static final int QUERY = 128;

  private final Random random = new Random(9);

  private static KvCache cache() {
    return Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
  }

  private static MemorySegment segment(Arena arena, float[] data) {
    MemorySegment segment = arena.allocate(4L * data.length, 64);
    MemorySegment.copy(data, 0, segment, ValueLayout.JAVA_FLOAT, 0, data.length);
    return segment;
  }

  private static Rows floats(MemorySegment segment) {
    return Segments.rows(segment, ElementType.FLOAT32);
  }

  private static void append(KvCache cache, KvSequence sequence, int tokens, Rows keys, Rows values) {
    cache.append(0, List.of(sequence), new int[] {tokens}, keys, values);
  }

  private static void attend(KvCache cache, KvSequence sequence, Rows queries, Rows outputs) {
    cache.attend(new AttendBatch(List.of(sequence)).queries(queries).outputs(outputs));
  }

  @Test
  void stacksMayEndAnywhere() throws Exception {
    ChildJvm.Outcome outcome =
        new ChildJvm()
            .with("--enable-native-access=ALL-UNNAMED", "-Xss512k")
            .withLibrary()
            .run(DeepStack.class);
    assertEquals(0, outcome.status(), outcome.output());
    assertTrue(outcome.output().contains("200 of 200"), outcome.output());
  }

  @Test
  void everyKindOfSegmentIsWhatAnArrayIs() {
    float[] keys = Testing.gaussian(random, 300 * ROW);
    float[] values = Testing.gaussian(random, 300 * ROW);
    float[] query = Testing.gaussian(random, QUERY);
    float[] expected = new float[QUERY];
    try (KvCache cache = cache();
        KvSequence plain = cache.newSequence();
        Arena confined = Arena.ofConfined();
        Arena shared = Arena.ofShared()) {
      append(cache, plain, 300, Rows.of(keys), Rows.of(values));
      attend(cache, plain, Rows.of(query), Rows.of(expected));
      for (Arena arena : List.of(confined, shared, Arena.ofAuto(), Arena.global())) {
        try (KvSequence sequence = cache.newSequence()) {
          append(cache, sequence, 300, floats(segment(arena, keys)), floats(segment(arena, values)));
          assertArrayEquals(plain.read(0, Side.KEYS, 0, 300), sequence.read(0, Side.KEYS, 0, 300));
          MemorySegment output = arena.allocate(4L * QUERY, 64);
          attend(cache, sequence, floats(segment(arena, query)), floats(output));
          assertArrayEquals(expected, output.toArray(ValueLayout.JAVA_FLOAT));
        }
      }
      MemorySegment heap = MemorySegment.ofArray(new float[QUERY]);
      attend(cache, plain, floats(MemorySegment.ofArray(query)), floats(heap));
      assertArrayEquals(expected, heap.toArray(ValueLayout.JAVA_FLOAT));
      byte[] bytes = new byte[4 * QUERY + 12];
      MemorySegment part = MemorySegment.ofArray(bytes).asSlice(8, 4L * QUERY);
      attend(cache, plain, floats(MemorySegment.ofArray(query).asReadOnly()), floats(part));
      assertArrayEquals(expected, part.toArray(ValueLayout.JAVA_FLOAT_UNALIGNED));
      float[] longer = new float[QUERY + 5];
      attend(cache, plain, Rows.of(query), floats(MemorySegment.ofArray(longer).asSlice(12, 4L * QUERY)));
      assertArrayEquals(expected, Arrays.copyOfRange(longer, 3, 3 + QUERY));
      assertThrows(
          IllegalArgumentException.class,
          () -> attend(cache, plain, Rows.of(query), floats(MemorySegment.ofArray(longer).asReadOnly())));
      assertThrows(IllegalArgumentException.class, () -> floats(MemorySegment.ofArray(new double[QUERY])));
    }
  }

  @Test
  void sixteenBitsAndStrides() {
    float[] rows = Testing.gaussian(random, 5 * ROW);
    try (KvCache cache = cache();
        KvSequence sequence = cache.newSequence();
        Arena arena = Arena.ofShared()) {
      MemorySegment halves = arena.allocate(2L * 5 * 2 * ROW, 16);
      for (int t = 0; t < 5; t++) {
        for (int c = 0; c < ROW; c++) {
          halves.setAtIndex(ValueLayout.JAVA_SHORT, 2L * t * ROW + c, Testing.halfBits(rows[t * ROW + c]));
        }
      }
      Rows strided = Segments.rows(halves, ElementType.FLOAT16).strides(2L * ROW, ROW / 2);
      append(cache, sequence, 5, strided, strided);
      float[] read = sequence.read(0, Side.KEYS, 0, 5);
      for (int i = 0; i < read.length; i++) {
        assertEquals(Float.float16ToFloat(Testing.halfBits(rows[i])), read[i]);
      }
    }
  }

  @Test
  void memoryThatIsGoneOrOthersIsRefused() throws Exception {
    float[] row = Testing.gaussian(random, QUERY);
    try (KvCache cache = cache();
        KvSequence sequence = cache.newSequence()) {
      append(cache, sequence, 1, Rows.of(row), Rows.of(row));
      for (boolean shared : new boolean[] {true, false}) {
        Arena arena = shared ? Arena.ofShared() : Arena.ofConfined();
        Rows gone = floats(segment(arena, row));
        arena.close();
        refuse(cache, sequence, gone, row);
      }
      AtomicReference<Rows> foreign = new AtomicReference<>();
      Thread owner = new Thread(() -> foreign.set(floats(segment(Arena.ofConfined(), row))));
      owner.start();
      owner.join();
      refuse(cache, sequence, foreign.get(), row);
      assertEquals(1, sequence.length(0));
    }
  }

  private static void refuse(KvCache cache, KvSequence sequence, Rows bad, float[] row) {
    Rows good = Rows.of(row.clone());
    assertThrows(IllegalStateException.class, () -> append(cache, sequence, 1, bad, good));
    assertThrows(IllegalStateException.class, () -> append(cache, sequence, 1, good, bad));
    assertThrows(IllegalStateException.class, () -> attend(cache, sequence, bad, good));
    assertThrows(IllegalStateException.class, () -> attend(cache, sequence, good, bad));
  }

  @Test
  void wrongMemoryIsAnArgument() {
    float[] row = Testing.gaussian(random, QUERY);
    try (KvCache cache = cache();
        KvSequence sequence = cache.newSequence();
        Arena arena = Arena.ofConfined()) {
      MemorySegment memory = segment(arena, row);
      append(cache, sequence, 1, floats(memory), floats(memory));
      assertThrows(
          IllegalArgumentException.class, () -> append(cache, sequence, 3, floats(memory), floats(memory)));
      assertThrows(
          IllegalArgumentException.class,
          () -> attend(cache, sequence, floats(memory), floats(memory.asReadOnly())));
      assertThrows(
          IllegalArgumentException.class,
          () -> append(cache, sequence, 1, floats(memory.asSlice(2, 4 * ROW)), floats(memory)));
      memory.setAtIndex(ValueLayout.JAVA_FLOAT, 7, Float.NaN);
      assertThrows(NotFiniteException.class, () -> append(cache, sequence, 1, floats(memory), floats(memory)));
      assertEquals(1, sequence.length(0));
    }
  }

  /** What a call holds cannot be closed, and can be afterwards. */
  /** Nobody shows the array of a read-only segment, but how wide its elements are can be seen. */
  @Test
  void readOnlySegmentsAreRefusedAsOthersAre() {
    for (MemorySegment wide : List.of(MemorySegment.ofArray(new double[ROW]), MemorySegment.ofArray(new long[ROW]))) {
      for (ElementType type : ElementType.values()) {
        assertThrows(IllegalArgumentException.class, () -> Segments.rows(wide, type));
        assertThrows(IllegalArgumentException.class, () -> Segments.rows(wide.asReadOnly(), type));
      }
    }
    MemorySegment floats = MemorySegment.ofArray(new float[ROW]).asReadOnly();
    assertThrows(IllegalArgumentException.class, () -> Segments.rows(floats, ElementType.FLOAT16));
    byte[] odd = new byte[4 * ROW + 3];
    odd[0] = 0x40;
    try (KvCache cache = cache();
        KvSequence sequence = cache.newSequence()) {
      MemorySegment bytes = MemorySegment.ofArray(odd);
      append(cache, sequence, 1, floats(bytes), floats(bytes.asReadOnly()));
      assertArrayEquals(sequence.read(0, Side.KEYS, 0, 1), sequence.read(0, Side.VALUES, 0, 1));
    }
  }

  @Test
  void aCallHoldsItsSegments() {
    Arena arena = Arena.ofShared();
    HeldMemory held = new HeldSegment(arena.allocate(64, 64));
    AtomicBoolean ran = new AtomicBoolean();
    held.hold(
        () -> {
          assertThrows(IllegalStateException.class, arena::close);
          held.hold(() -> ran.set(true));
        });
    assertTrue(ran.get());
    assertThrows(UnsupportedOperationException.class, () -> held.hold(() -> refuseAll()));
    assertThrows(StackOverflowError.class, () -> held.hold(() -> endless(0)));
    arena.close();
    ran.set(false);
    assertThrows(IllegalStateException.class, () -> held.hold(() -> ran.set(true)));
    assertFalse(ran.get());
  }

  private static void refuseAll() {
    throw new UnsupportedOperationException("all");
  }

  private static int endless(int depth) {
    return endless(depth + 1) + 1;
  }

  /** One thread appends from a shared Arena and attends into it while another closes it. */
  @Test
  void closingDuringACallDoesNoHarm() throws Exception {
    int tokens = 2000;
    float[] rows = Testing.gaussian(random, tokens * ROW);
    try (KvCache cache = cache()) {
      for (int round = 0; round < 60; round++) {
        Arena arena = Arena.ofShared();
        Rows memory = floats(segment(arena, rows));
        int wait = round * 30_000;
        Thread closer =
            new Thread(
                () -> {
                  for (long end = System.nanoTime() + wait; System.nanoTime() < end; ) {
                    Thread.onSpinWait();
                  }
                  while (arena.scope().isAlive()) {
                    try {
                      arena.close();
                    } catch (IllegalStateException e) {
                      Thread.onSpinWait(); // in use just now
                    }
                  }
                });
        closer.start();
        try (KvSequence sequence = cache.newSequence()) {
          assertThrows(
              IllegalStateException.class,
              () -> {
                while (true) {
                  append(cache, sequence, tokens, memory, memory);
                  attend(cache, sequence, memory, memory);
                  sequence.truncate(0);
                }
              });
        }
        closer.join();
      }
    }
  }
}
