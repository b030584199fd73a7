package dev.kvasir.exhausted;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.ChildJvm;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.Testing;
import dev.kvasir.error.KvException;
import dev.kvasir.method.Uniform;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.bytedeco.javacpp.Pointer;
import org.junit.jupiter.api.Test;

/** Where the process has no native memory left, calls on arrays fail with an exception, and go on when there is some. */
class ExhaustedMemoryTest {

  /** Uses a cache while all addresses but a few are taken. */
  public static final class Program {

    private static final int TOKENS = 1 << 14;

    private static String attempt(Runnable call) {
      try {
        call.run();
        return "done";
      } catch (KvException e) {
        return e.code().toString();
      } catch (OutOfMemoryError e) {
        return "OutOfMemoryError";
      }
    }

    /** Takes memory until there is none. What is under a megabyte is left to the JVM. */
    private static List<Pointer> hoard() {
      List<Pointer> taken = new ArrayList<>();
      for (long size = 1L << 30; size >= 1 << 20; size /= 2) {
        for (Pointer memory = Pointer.malloc(size); memory != null; memory = Pointer.malloc(size)) {
          taken.add(memory);
        }
      }
      return taken;
    }

    public static void main(String[] args) {
      Random random = new Random(3);
      KvGeometry geometry = KvGeometry.builder().layers(1).queryHeads(2).kvHeads(2).headDim(32).build();
      int row = 64;
      float[] rows = Testing.gaussian(random, TOKENS * row);
      float[] outputs = new float[rows.length];
      try (KvCache cache = KvCache.builder(geometry).method(Uniform.bits(2)).backend("auto").build();
          KvSequence sequence = cache.newSequence()) {
        sequence.append(0, rows, rows, TOKENS);
        sequence.attend(0, rows, outputs, 2);
        float[] before = sequence.read(0, Side.KEYS, 0, TOKENS);
        List<Pointer> taken = hoard();
        String append = attempt(() -> sequence.append(0, rows, rows, TOKENS));
        String attend = attempt(() -> sequence.attend(0, rows, outputs, TOKENS));
        String observe = attempt(() -> sequence.observe(0, rows, TOKENS));
        String read = attempt(() -> sequence.read(0, Side.VALUES, 0, TOKENS));
        taken.forEach(Pointer::free);
        System.out.println("append " + append + ", attend " + attend + ", observe " + observe + ", read " + read);
        if (sequence.length() != TOKENS || !Arrays.equals(before, sequence.read(0, Side.KEYS, 0, TOKENS))) {
          System.out.println("the sequence has changed");
        }
        sequence.append(0, rows, rows, TOKENS);
        System.out.println("then " + sequence.length());
      }
    }
  }

  @Test
  void arraysThatCannotBeCopiedAreAnException() throws Exception {
    ChildJvm.Outcome outcome =
        new ChildJvm()
            .under("ulimit -v 3000000")
            // No compiler, whose own needs would end the JVM.
            .withLibrary()
            .with("-Dkvasir.backend=cpu", "-Xint", "-Xmx256m", "-XX:ReservedCodeCacheSize=16m", "-XX:CompressedClassSpaceSize=32m")
            .run(Program.class);
    assertEquals(0, outcome.status(), outcome.output());
    String refused = "(OUT_OF_MEMORY|OutOfMemoryError)";
    assertTrue(
        outcome
            .output()
            .matches(
                "(?s).*append " + refused + ", attend " + refused + ", observe " + refused + ", read " + refused
                    + "\\s.*"),
        outcome.output());
    assertTrue(outcome.output().contains("then " + 2 * Program.TOKENS), outcome.output());
    assertTrue(!outcome.output().contains("has changed"), outcome.output());
  }
}
