package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.method.MixKvq;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.nio.file.Path;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;

/** Buffers over memory of an Arena, which JDK 22 and newer may free while the buffer lives on. */
class ArenaBufferTest {

  /** A program for such a JDK, which this source need not know. */
  public static final class Program {

    private static Object arena(String kind) throws Exception {
      return Class.forName("java.lang.foreign.Arena").getMethod(kind).invoke(null);
    }

    private static ByteBuffer bytes(Object arena, long count) throws Exception {
      Method allocate = Class.forName("java.lang.foreign.Arena").getMethod("allocate", long.class, long.class);
      Object segment = allocate.invoke(arena, count, 64L);
      Method asByteBuffer = Class.forName("java.lang.foreign.MemorySegment").getMethod("asByteBuffer");
      return ((ByteBuffer) asByteBuffer.invoke(segment)).order(ByteOrder.nativeOrder());
    }

    private static void close(Object arena) throws Exception {
      Class.forName("java.lang.foreign.Arena").getMethod("close").invoke(arena);
    }

    private static void expectRefusal(String what, Runnable call) {
      try {
        call.run();
        System.out.println(what + " was accepted");
      } catch (IllegalStateException e) {
        return;
      } catch (RuntimeException e) {
        System.out.println(what + ": " + e);
      }
    }

    private static void refuseAll(String kind, KvSequence sequence, FloatBuffer gone, ShortBuffer shorts) {
      FloatBuffer good = Testing.direct(gone.capacity());
      expectRefusal(kind + " keys", () -> sequence.append(0, gone, good, 1));
      expectRefusal(kind + " values", () -> sequence.append(0, good, gone, 1));
      expectRefusal(kind + " 16-bit keys", () -> sequence.append(0, shorts, shorts, 1, ElementType.FLOAT16));
      expectRefusal(kind + " query", () -> sequence.attend(0, gone, good));
      expectRefusal(kind + " output", () -> sequence.attend(0, good, gone));
      expectRefusal(kind + " observed", () -> sequence.observe(0, gone, 1));
    }

    public static void main(String[] args) throws Exception {
      KvGeometry geometry = Testing.small();
      int size = (int) Math.max(geometry.querySize(0), geometry.rowSize(0));
      Random random = new Random(4);
      float[] row = Testing.gaussian(random, size);
      try (KvCache cache = KvCache.builder(geometry).method(MixKvq.budget(3)).build();
          KvSequence sequence = cache.newSequence()) {
        sequence.append(0, row, row, 1);
        for (String kind : new String[] {"ofShared", "ofConfined"}) {
          Object arena = arena(kind);
          ByteBuffer memory = bytes(arena, 4L * size);
          FloatBuffer floats = memory.asFloatBuffer();
          floats.put(0, row);
          float[] expected = new float[size];
          sequence.attend(0, row, expected);
          sequence.attend(0, floats, floats); // alive, and in place
          for (int i = 0; i < geometry.querySize(0); i++) {
            if (floats.get(i) != expected[i]) {
              System.out.println(kind + ": output " + i + " is " + floats.get(i) + ", not " + expected[i]);
              break;
            }
          }
          close(arena);
          refuseAll("closed " + kind, sequence, floats, memory.asShortBuffer());
        }

        AtomicReference<ByteBuffer> foreign = new AtomicReference<>();
        Thread owner =
            new Thread(
                () -> {
                  try {
                    foreign.set(bytes(arena("ofConfined"), 4L * size));
                  } catch (Exception e) {
                    System.out.println(e);
                  }
                });
        owner.start();
        owner.join();
        refuseAll("foreign", sequence, foreign.get().asFloatBuffer(), foreign.get().asShortBuffer());
        System.out.println("length " + sequence.length(0));
        race(cache, row);
        System.out.println("lives");
      }
    }

    /** One thread appends from a shared Arena and attends into it while another closes it. */
    private static void race(KvCache cache, float[] row) throws Exception {
      int tokens = 2000;
      int size = tokens * (int) cache.geometry().rowSize(0);
      for (int round = 0; round < 100; round++) {
        Object arena = arena("ofShared");
        FloatBuffer floats = bytes(arena, 4L * size).asFloatBuffer();
        int wait = round * 20_000;
        Thread closer =
            new Thread(
                () -> {
                  try {
                    for (long end = System.nanoTime() + wait; System.nanoTime() < end; ) {
                      Thread.onSpinWait();
                    }
                    for (boolean closed = false; !closed; ) {
                      try {
                        close(arena);
                        closed = true;
                      } catch (java.lang.reflect.InvocationTargetException e) {
                        closed = false; // in use just now
                      }
                    }
                  } catch (Exception e) {
                    System.out.println(e);
                  }
                });
        closer.start();
        try (KvSequence sequence = cache.newSequence()) {
          while (true) {
            sequence.append(0, floats, floats, tokens);
            sequence.attend(0, floats, floats, 8);
            sequence.truncate(0);
          }
        } catch (IllegalStateException e) {
          while (closer.isAlive()) {
            try {
              closer.join();
            } catch (InterruptedException again) {
              continue; // JDK 25 stops threads that it finds in such memory as if by an interrupt, if late
            }
          }
        }
      }
    }
  }

  @Test
  void memoryThatIsGoneIsRefused() throws Exception {
    Optional<Path> home = ChildJvm.jdk(22);
    Assumptions.assumeTrue(home.isPresent(), "no JDK 22 or newer in /usr/lib/jvm");
    ChildJvm.Outcome outcome =
        new ChildJvm().on(home.get()).withLibrary().with("--enable-native-access=ALL-UNNAMED").run(Program.class);
    assertEquals(0, outcome.status(), outcome.output());
    assertTrue(outcome.output().contains("length 1\nlives"), outcome.output());
    assertTrue(!outcome.output().contains("accepted") && !outcome.output().contains("Exception"), outcome.output());
    assertTrue(!outcome.output().contains("output"), outcome.output());
  }
}
