package dev.kvasir.runner;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Kvasir;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

/**
 * Where the time of a model on the CPU goes: every operation, when prompts are read as an engine reads them, a chunk at a
 * time, and when tokens are written behind them. The cache holds 16 bits.
 *
 * <p>Arguments: the model's file, then lengths of prompts.
 */
final class StepProfile {

  private static final int CHUNK = 128;
  private static final int WRITTEN = 32;

  private final OperationTimes operations;
  private final Decoder decoder;
  private final int[] tokens;

  private StepProfile(Model model, int longest) {
    this.operations = new OperationTimes(new HostCompute(model.config()));
    this.decoder = new Decoder(model, operations.timed());
    int vocabulary = model.config().vocabulary();
    this.tokens = new int[longest];
    Arrays.setAll(tokens, i -> (int) (i * 7919L % vocabulary)); // which they are makes no difference
  }

  public static void main(String[] arguments) throws IOException {
    Model model = Model.load(Path.of(arguments[0]));
    int[] lengths = Arrays.stream(arguments).skip(1).mapToInt(Integer::parseInt).toArray();
    StepProfile profile = new StepProfile(model, Arrays.stream(lengths).max().orElseThrow() + WRITTEN);
    try (KvCache cache = KvCache.builder(model.geometry()).build()) {
      System.out.printf("%s, %d threads%n", cache.stats().backend(), Kvasir.threads());
      profile.run(cache, Math.min(CHUNK, lengths[0]), false); // compiles, and brings the file into memory
      for (int length : lengths) {
        profile.run(cache, length, true);
      }
    }
  }

  private void run(KvCache cache, int length, boolean print) {
    try (KvSequence sequence = cache.newSequence()) {
      long start = begin();
      for (int from = 0; from < length; from += CHUNK) {
        int count = Math.min(CHUNK, length - from);
        feed(sequence, from, count, from + count == length ? 1 : 0);
      }
      end("reading " + length + " tokens", start, length, print);
      start = begin();
      for (int i = 0; i < WRITTEN; i++) {
        feed(sequence, length + i, 1, 1);
      }
      end("writing " + WRITTEN + " tokens behind " + length, start, WRITTEN, print);
    }
  }

  private void feed(KvSequence sequence, int from, int count, int wanted) {
    decoder.decode(
        List.of(new Decoder.Feed(sequence, tokens, from, count, wanted)),
        (feed, token, logits) -> Sampler.likeliest(logits));
  }

  private long begin() {
    operations.times().clear();
    return System.nanoTime();
  }

  private void end(String title, long start, int count, boolean print) {
    double all = (System.nanoTime() - start) / 1e6;
    if (!print) {
      return;
    }
    System.out.printf("%n%s: %.1f tokens/s, %.3f ms a token%n", title, 1000 * count / all, all / count);
    double rest = all;
    for (var entry : operations.times().entrySet()) {
      OperationTimes.Time time = entry.getValue();
      double ms = time.nanos / 1e6;
      rest -= ms;
      String rates =
          time.products == 0
              ? ""
              : String.format("  %7.1f G products/s  %6.2f GB/s", time.products / ms / 1e6, time.bytes / ms / 1e6);
      System.out.printf(
          "%-42s %6d calls  %8.3f ms a token  %5.1f %%%s%n",
          entry.getKey(), time.calls, ms / count, 100 * ms / all, rates);
    }
    System.out.printf("%-42s               %8.3f ms a token  %5.1f %%%n", "between them", rest / count, 100 * rest / all);
  }
}
