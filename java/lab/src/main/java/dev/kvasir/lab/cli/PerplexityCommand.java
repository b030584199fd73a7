package dev.kvasir.lab.cli;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.lab.evaluate.ProgressBar;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.file.ModelException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.function.IntConsumer;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParentCommand;
import picocli.CommandLine.Spec;

@Command(
    name = "perplexity",
    description = {
      "How well a model foresees a text: e to the mean of -ln p of its tokens.",
      "Each window begins with what the model expects before every text and is read on its own."
    },
    mixinStandardHelpOptions = true)
final class PerplexityCommand implements Callable<Integer> {

  @ParentCommand private Main main;
  @Spec private CommandSpec spec;
  @Mixin private CacheOptions cache;

  @Option(names = "--model", paramLabel = "FILE", required = true, description = "A GGUF file, or a model's folder.")
  private Path path;

  @Option(names = "--text", paramLabel = "FILE", required = true, description = "What it reads.")
  private Path text;

  @Option(names = "--windows", paramLabel = "N", description = "Windows of the text. Default: ${DEFAULT-VALUE}.")
  private int windows = 8;

  @Option(
      names = "--window",
      paramLabel = "N",
      description = "Tokens of a window. Default: 2048, or as many as the model was made for.")
  private @Nullable Integer given;

  @Option(names = "--chunk", paramLabel = "N", description = "Tokens read at once. Default: ${DEFAULT-VALUE}.")
  private int chunk = 128;

  @Override
  public Integer call() throws IOException {
    Range.requirePositive(spec, "--windows", windows);
    Range.requirePositive(spec, "--chunk", chunk);
    Range.require(spec, given == null || given >= 2, "--window", String.valueOf(given), "2 or more");
    cache.check();
    Model model = Model.load(path);
    int[] prefix = model.tokenizer().prefix();
    int most = model.config().maxPositions();
    int window = given == null ? Math.min(2048, most) : given;
    int least = Math.max(2, prefix.length + 1);
    if (window < least || window > most) {
      throw new IllegalArgumentException(
          "--window " + window + " is not " + least + ".." + most + ", what the model was made for");
    }
    int[] all = model.tokenizer().encode(TextOptions.bytes(text, Integer.MAX_VALUE));
    try (Decoder decoder = cache.decoder(model)) {
      return run(decoder, prefix, all, window);
    }
  }

  private int run(Decoder decoder, int[] prefix, int[] all, int window) throws ModelException {
    int own = window - prefix.length;
    double sum = 0;
    long counted = 0;
    long start = System.nanoTime();
    ProgressBar bar = main.progress();
    main.endsWhenStopped(() -> {});
    int expected = Math.min(windows, all.length / own);
    for (int w = 0; w < windows && (w + 1) * own <= all.length && !main.stopped(); w++) {
      int[] tokens = new int[window];
      System.arraycopy(prefix, 0, tokens, 0, prefix.length);
      System.arraycopy(all, w * own, tokens, prefix.length, own);
      int done = w;
      sum += surprise(decoder, tokens, read -> bar.show((long) done * tokens.length + read, (long) expected * tokens.length, "reads"));
      bar.end();
      counted += window - 1;
      double seconds = (System.nanoTime() - start) / 1e9;
      main.out()
          .printf(
              Locale.ROOT, "%d windows: perplexity %.4f, %.1f tokens/s%n", w + 1, Math.exp(sum / counted),
              (w + 1) * (double) window / seconds);
      main.out().flush();
    }
    if (counted == 0) {
      throw new ModelException(text + " has " + all.length + " tokens, less than a window of " + window);
    }
    return main.stopped() ? Main.STOPPED : 0;
  }

  /** The sum of -ln p of all tokens but the first. */
  private double surprise(Decoder decoder, int[] tokens, IntConsumer read) {
    double[] sum = {0};
    try (KvCache kept = cache.cache(decoder.model());
        KvSequence sequence = kept.newSequence()) {
      for (int from = 0; from < tokens.length - 1; from += chunk) {
        int count = Math.min(chunk, tokens.length - 1 - from);
        decoder.decode(
            List.of(new Decoder.Feed(sequence, tokens, from, count, count)),
            (feed, token, logits) -> sum[0] += surprise(logits, tokens[token + 1]));
        read.accept(from + count);
      }
    }
    return sum[0];
  }

  private static double surprise(float[] logits, int token) {
    double highest = Double.NEGATIVE_INFINITY;
    for (float logit : logits) {
      highest = Math.max(highest, logit);
    }
    double total = 0;
    for (float logit : logits) {
      total += Math.exp(logit - highest);
    }
    return highest + Math.log(total) - logits[token];
  }
}
