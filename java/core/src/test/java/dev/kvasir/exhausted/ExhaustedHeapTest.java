package dev.kvasir.exhausted;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.ChildJvm;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Testing;
import dev.kvasir.method.Uniform;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Wherever in a call Java's heap has no room for the next object, the call ends with an exception, and nothing has changed. */
class ExhaustedHeapTest {

  /** Makes calls with hardly any heap left, each time with a little more. */
  public static final class Program {

    private static final int TOKENS = 1 << 11;
    private static final int STEPS = 150;

    /** What fills the heap. */
    private record Ballast(Ballast below, byte[] bytes) {}

    /** Small pieces, which are given back one by one. */
    private static Ballast pieces;

    private static Ballast ballast;
    private static int refused;
    private static int done;

    private static void fill() {
      for (int step = 0; step < STEPS; step++) {
        pieces = new Ballast(pieces, new byte[40]);
      }
      for (int bytes = 1 << 20; bytes >= 8; bytes /= 2) {
        try {
          while (true) {
            ballast = new Ballast(ballast, new byte[bytes]);
          }
        } catch (OutOfMemoryError e) {
          continue; // smaller pieces
        }
      }
    }

    private static void attempt(Runnable call) {
      try {
        call.run();
        done++;
      } catch (OutOfMemoryError | IllegalArgumentException e) {
        refused++;
      }
    }

    public static void main(String[] args) {
      KvGeometry geometry = KvGeometry.builder().layers(2).queryHeads(2).kvHeads(2).headDim(32).build();
      float[] rows = Testing.gaussian(new Random(3), TOKENS * 64);
      float[] outputs = new float[rows.length];
      try (KvCache cache = KvCache.builder(geometry).method(Uniform.bits(2)).build();
          KvSequence sequence = cache.newSequence()) {
        sequence.append(0, rows, rows, TOKENS);
        sequence.attend(0, rows, outputs, TOKENS);
        float[] before = outputs.clone();
        Runnable attend = () -> sequence.attend(0, rows, outputs, TOKENS); // more than memory that waits for calls holds
        Runnable refusal = () -> sequence.attend(1, rows, outputs); // native code says that the layer is empty
        Runnable fork = () -> sequence.fork().close();
        attempt(attend);
        attempt(refusal);
        attempt(fork);
        fill();
        for (int step = 0; step < STEPS; step++) {
          attempt(attend);
          attempt(refusal);
          attempt(fork);
          pieces = pieces.below();
        }
        ballast = null;
        sequence.attend(0, rows, outputs, TOKENS);
        System.out.println("refused " + (refused > STEPS) + ", done " + (done > 0));
        System.out.println("same " + Arrays.equals(before, outputs) + ", sequences " + cache.stats().sequences());
      }
    }
  }

  @Test
  void callsEndWithAnException() throws Exception {
    check(new ChildJvm());
  }

  @Test
  void andBesideOtherLibrariesOverJavaCpp() throws Exception {
    check(new ChildJvm().besideJavaCpp());
  }

  private static void check(ChildJvm jvm) throws Exception {
    ChildJvm.Outcome outcome =
        jvm.withLibrary()
            // The heap ends where it ends, for every object alike.
            .with("-Dkvasir.backend=cpu", "-Xint", "-Xmx10m", "-XX:+UseSerialGC", "-XX:-UseTLAB", "-XX:-UseGCOverheadLimit")
            .run(Program.class);
    assertEquals(0, outcome.status(), outcome.output());
    assertTrue(outcome.output().contains("refused true, done true"), outcome.output());
    assertTrue(outcome.output().contains("same true, sequences 1"), outcome.output());
  }
}
