package dev.kvasir;

import dev.kvasir.error.KvException;
import dev.kvasir.method.Uniform;
import java.util.Arrays;
import java.util.Random;

/**
 * {@code DeviceFault LIBRARY}: a program, for it breaks the GPU of its process by loading a library that does. Then caches
 * there say so, caches on the CPU go on, and the JVM ends as it should.
 */
public final class DeviceFault {

  private static final int TOKENS = 300;

  private DeviceFault() {}

  /**
   * Runs; says "ok" at the end.
   *
   * @param args the library
   */
  public static void main(String[] args) {
    KvGeometry geometry = Testing.small();
    float[] rows = Testing.gaussian(new Random(7), TOKENS * geometry.rowSize(0));
    float[] query = Testing.gaussian(new Random(8), geometry.querySize(0));
    float[] before = new float[query.length];
    float[] after = new float[query.length];
    try (KvCache there = KvCache.builder(geometry).method(Uniform.bits(2)).backend("cuda").build();
        KvCache here = KvCache.builder(geometry).method(Uniform.bits(2)).backend("scalar").build();
        KvSequence lost = there.newSequence();
        KvSequence kept = here.newSequence()) {
      lost.append(0, rows, rows, TOKENS);
      kept.append(0, rows, rows, TOKENS);
      kept.attend(0, query, before);
      System.load(args[0]);
      refused("attend", () -> lost.attend(0, query, after));
      refused("append", () -> lost.append(0, rows, rows, TOKENS));
      refused("a new cache", () -> KvCache.builder(geometry).backend("cuda").build().newSequence().append(0, rows, rows, 1));
      kept.attend(0, query, after);
      if (!Arrays.equals(before, after)) {
        throw new AssertionError("the cache on the CPU changed");
      }
    }
    System.out.println("ok");
  }

  private static void refused(String what, Runnable call) {
    try {
      call.run();
    } catch (KvException e) {
      System.out.println(what + ": " + e);
      return;
    }
    throw new AssertionError(what + " was carried out on a broken device");
  }
}
