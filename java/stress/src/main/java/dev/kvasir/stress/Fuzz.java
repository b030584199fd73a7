package dev.kvasir.stress;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** {@code Fuzz SECONDS [SEED]}: random calls for most of the time, damaged files for the rest. */
public final class Fuzz {

  private Fuzz() {}

  /**
   * Runs; ends with "N passed, N failed", and 1 where something failed.
   *
   * @param args seconds, and a seed to repeat
   */
  public static void main(String[] args) throws IOException {
    long seconds = args.length > 0 ? Long.parseLong(args[0]) : 60;
    long seed = args.length > 1 ? Long.parseLong(args[1]) : System.nanoTime() & 0xFFFFFFFFL;
    System.out.println("seed " + seed);
    long start = System.nanoTime();
    int failed = 0;
    for (Part part : List.<Part>of(Fuzz::calls, Fuzz::files)) {
      start = System.nanoTime();
      try {
        part.run(seed, start + TimeUnit.SECONDS.toNanos(seconds) / 2);
      } catch (Violation e) {
        e.printStackTrace(System.out);
        System.out.println("FAILED  seed " + seed + ": " + e.getMessage());
        failed++;
      }
    }
    System.out.println(2 - failed + " passed, " + failed + " failed");
    System.exit(failed == 0 ? 0 : 1);
  }

  private interface Part {
    void run(long seed, long deadline) throws IOException;
  }

  private static void calls(long seed, long deadline) {
    CallFuzzer fuzzer = new CallFuzzer(seed);
    long rounds = 0;
    for (; System.nanoTime() < deadline; rounds++) {
      String what = fuzzer.round(rounds, deadline);
      if (rounds < 3 || (rounds & rounds - 1) == 0) {
        System.out.println("round " + rounds + ": " + what);
      }
    }
    System.out.println("ok      " + fuzzer.calls() + " calls in " + rounds + " rounds");
  }

  private static void files(long seed, long deadline) throws IOException {
    Path folder = Files.createTempDirectory("kvasir-fuzz-");
    try {
      FileFuzzer fuzzer = new FileFuzzer(folder, new Random(seed));
      do {
        fuzzer.round();
      } while (System.nanoTime() < deadline);
      System.out.println("ok      " + fuzzer.refused() + " damaged files refused, " + fuzzer.read() + " read");
    } finally {
      try (Stream<Path> files = Files.walk(folder)) {
        files.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
      }
    }
  }
}
