package dev.kvasir.exhausted;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.ChildJvm;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.Testing;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.MixKvq;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.PmKvq;
import dev.kvasir.method.Uniform;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Calls of threads whose stack is small, or all but used up: they are done, or end with a StackOverflowError. */
class ExhaustedStackTest {

  /** Makes calls at the end of stacks. */
  public static final class Program {

    private static final int TOKENS = 300;
    private static final int CALLS = 200;

    private static int overflows;
    private static int done;

    /** Down to the end of the stack; the calls are made on the way back, each with a little more room. */
    private static int descend(Runnable call, int[] left) {
      int depth;
      try {
        depth = 1 + descend(call, left);
      } catch (StackOverflowError e) {
        depth = 1;
      }
      if (left[0]-- > 0) {
        try {
          call.run();
          done++;
        } catch (StackOverflowError e) {
          overflows++;
        }
      }
      return depth;
    }

    private static void atTheEnd(Runnable call) throws InterruptedException {
      for (int kilobytes : new int[] {256, 512, 2048}) {
        Thread thread = new Thread(null, () -> descend(call, new int[] {CALLS}), "deep", kilobytes << 10);
        thread.start();
        thread.join();
      }
    }

    public static void main(String[] args) throws InterruptedException {
      KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(8).kvHeads(4).headDim(128).build();
      float[] rows = Testing.gaussian(new Random(3), TOKENS * 512);
      for (KvMethod method :
          List.of(new HalfPrecision(), Uniform.bits(2), PatternKv.bits(2), MixKvq.budget(3), PmKvq.floor(2))) {
        try (KvCache cache = KvCache.builder(geometry).method(method).threads(1).build();
            KvSequence sequence = cache.newSequence()) {
          float[] output = new float[geometry.querySize(0)];
          sequence.append(0, rows, rows, TOKENS);
          sequence.attend(0, rows, output);
          float[] before = output.clone();
          Runnable attend = () -> sequence.attend(0, rows, output);
          Runnable append = () -> appendTo(sequence, rows);
          Runnable read = () -> sequence.read(0, Side.KEYS, 0, TOKENS);
          append.run(); // so that no class is to be initialised at the end of a stack: that fails for ever
          read.run();
          atTheEnd(attend);
          atTheEnd(append);
          atTheEnd(read);
          sequence.attend(0, rows, output);
          if (!Arrays.equals(before, output) || sequence.length() != TOKENS) {
            System.out.println(method.name() + " has changed");
          }
        }
      }
      System.out.println("overflows " + (overflows > 0) + ", done " + (done > 0));
    }

    private static void appendTo(KvSequence sequence, float[] rows) {
      try (KvSequence fork = sequence.fork()) {
        fork.append(0, rows, rows, 130);
      }
    }
  }

  @Test
  void callsAreDoneOrEndWithAnException() throws Exception {
    check(new ChildJvm());
  }

  @Test
  void andBesideOtherLibrariesOverJavaCpp() throws Exception {
    check(new ChildJvm().besideJavaCpp());
  }

  private static void check(ChildJvm jvm) throws Exception {
    ChildJvm.Outcome outcome = jvm.withLibrary().with("-Dkvasir.backend=cpu").run(Program.class);
    assertEquals(0, outcome.status(), outcome.output());
    assertTrue(outcome.output().contains("overflows true, done true"), outcome.output());
    assertTrue(!outcome.output().contains("has changed"), outcome.output());
  }
}
