package dev.kvasir.runner;

import static org.bytedeco.cuda.global.cudart.cudaMemGetInfo;

import dev.kvasir.DeviceBuffer;
import dev.kvasir.ElementType;
import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Precision;
import dev.kvasir.Rows;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvException;
import dev.kvasir.internal.json.Json;
import dev.kvasir.internal.model.DeviceOperations;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.PatternKv;
import dev.kvasir.method.Uniform;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import org.bytedeco.javacpp.SizeTPointer;
import org.jspecify.annotations.Nullable;

/**
 * Whole models on the GPU of this machine: see ci/bench-model. Weights are random, contexts are random rows that are
 * appended through the cache, and a step is what an engine does: tokens in, attention through the cache, likeliest tokens
 * out.
 */
final class ModelBench {

  private static final Map<String, KvMethod> METHODS = new LinkedHashMap<>();

  static {
    METHODS.put("f16", new HalfPrecision());
    METHODS.put("uniform-4", Uniform.bits(4));
    METHODS.put("uniform-2", Uniform.bits(2));
    METHODS.put("pattern-2", PatternKv.bits(2));
  }

  /** Left of the device's memory where a batch takes all that it can: what appends work in. */
  private static final long MARGIN = 3L << 30;

  /** Where results go, after each of them. */
  private static @Nullable Path json;

  private static final int FILL = 8192;
  private static final int WARM_UP = 1500;

  private final Model model;
  private final Precision precision;
  private final CudaCompute compute;
  private final Decoder decoder;
  private final CudaDevice device;
  private final long fill;
  private final List<Map<String, Object>> results;
  private long peak;

  private ModelBench(Model model, Precision precision, List<Map<String, Object>> results) {
    this.model = model;
    this.precision = precision;
    this.results = results;
    this.compute = RandomModel.compute(model.config(), precision);
    this.decoder = new Decoder(model, compute);
    this.device = compute.device();
    long rowSize = (long) model.config().kvHeads() * model.config().headDim();
    this.fill = device.allocate(2 * 2L * FILL * rowSize);
    DeviceOperations.random(7, 1, 2L * FILL * rowSize, ElementType.FLOAT16, fill, device.stream().handle());
  }

  public static void main(String[] arguments) throws IOException {
    Map<String, String> given = new HashMap<>();
    for (int i = 0; i + 1 < arguments.length; i += 2) {
      given.put(arguments[i], arguments[i + 1]);
    }
    Function<String, Function<String, List<String>>> list =
        name -> fallback -> List.of(given.getOrDefault(name, fallback).split(","));
    List<Integer> contexts = list.apply("--contexts").apply("8192,32768,131072").stream().map(Integer::valueOf).toList();
    List<String> methods = list.apply("--methods").apply(String.join(",", METHODS.keySet()));
    long limit = Long.parseLong(given.getOrDefault("--memory", "0"));
    json = given.containsKey("--json") ? Path.of(given.get("--json")) : null;
    List<Map<String, Object>> results = new ArrayList<>();
    for (String shape : list.apply("--shapes").apply("llama-3.1-8b,qwen2.5-7b,llama-2-13b")) {
      Model model = RandomModel.of(shape);
      ModelBench bench = new ModelBench(model, Precision.FAST, results);
      bench.warmUp();
      for (String method : methods) {
        contexts.forEach(context -> bench.guarded(method, context, () -> bench.single(method, context)));
      }
      bench.guarded("f16", 0, () -> bench.prompt("f16"));
      bench.guarded("uniform-2", 0, () -> bench.prompt("uniform-2"));
      for (String method : methods) {
        bench.guarded(method, 32768, () -> bench.largest(method, 32768, limit));
      }
      bench.decoder.close();
      ModelBench exact = new ModelBench(model, Precision.EXACT, results);
      exact.guarded("f16", 8192, () -> exact.single("f16", 8192));
      exact.guarded("f16", 0, () -> exact.prompt("f16"));
      exact.decoder.close();
    }
  }

  /** What does not fit is said, and the rest goes on. */
  private void guarded(String method, int context, Runnable work) {
    try {
      work.run();
    } catch (KvException e) {
      Map<String, Object> row = row("failed", method, context);
      row.put("error", String.valueOf(e.getMessage()));
      print(row);
    }
  }

  private Map<String, Object> row(String kind, String method, int context) {
    Map<String, Object> row = new LinkedHashMap<>();
    row.put("kind", kind);
    row.put("shape", model.name());
    row.put("precision", precision.toString());
    row.put("method", method);
    row.put("context", context);
    return row;
  }

  private void print(Map<String, Object> row) {
    results.add(row);
    StringBuilder line = new StringBuilder();
    row.forEach(
        (name, value) ->
            line.append(name)
                .append(' ')
                .append(value instanceof Double d ? String.format(Locale.ROOT, "%.3f", d) : value)
                .append("  "));
    System.out.println(line);
    if (json != null) {
      try {
        Files.writeString(json, Json.write(results));
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
  }

  private long free() {
    SizeTPointer free = new SizeTPointer(1);
    SizeTPointer total = new SizeTPointer(1);
    CudaDevice.check(cudaMemGetInfo(free, total), "asking for the device's memory");
    peak = Math.max(peak, total.get() - free.get());
    return free.get();
  }

  private KvCache cache(String method) {
    return KvCache.builder(model.geometry()).method(METHODS.get(method)).precision(precision).backend("cuda").build();
  }

  /** Appends random rows to all layers, up to a length. */
  private void fill(KvCache cache, KvSequence sequence, int length) {
    long rowSize = (long) model.config().kvHeads() * model.config().headDim();
    for (int layer = 0; layer < model.config().layers(); layer++) {
      for (int at = 0; at < length; at += FILL) {
        int count = Math.min(FILL, length - at);
        Rows keys = Rows.of(new DeviceBuffer(fill, ElementType.FLOAT16, count * rowSize));
        Rows values = Rows.of(new DeviceBuffer(fill + 2 * FILL * rowSize, ElementType.FLOAT16, count * rowSize));
        cache.append(layer, List.of(sequence), new int[] {count}, keys, values, device.stream());
      }
    }
    device.synchronize();
  }

  /** A token of each; returns those that follow. */
  private int[] step(List<KvSequence> sequences, int[] tokens) {
    List<Decoder.Feed> feeds = new ArrayList<>();
    for (int i = 0; i < tokens.length; i++) {
      feeds.add(Decoder.Feed.of(sequences.get(i), tokens[i]));
    }
    int[] next = new int[tokens.length];
    decoder.decode(
        feeds,
        new Decoder.LogitSink() {
          @Override
          public void accept(int feed, int token, float[] logits) {
            throw new IllegalStateException("logits were not asked for");
          }

          @Override
          public boolean wantsToken(int feed) {
            return true;
          }

          @Override
          public void likeliest(int feed, int token, int likeliest) {
            if (likeliest < 0) {
              throw new IllegalStateException("the highest logit is no finite number");
            }
            next[feed] = likeliest;
          }
        });
    return next;
  }

  /** Lets the JVM compile what a step runs through, as it has in a server. */
  private void warmUp() {
    try (KvCache cache = cache("f16");
        KvSequence sequence = cache.newSequence()) {
      int[] tokens = {1};
      for (int i = 0; i < WARM_UP; i++) {
        tokens = step(List.of(sequence), tokens);
      }
    }
  }

  /** Milliseconds of a step, the median of some. */
  private double time(List<KvSequence> sequences, int steps) {
    int[] tokens = new int[sequences.size()];
    Arrays.setAll(tokens, i -> i * 37 % model.config().vocabulary());
    for (int i = 0; i < steps / 2; i++) {
      tokens = step(sequences, tokens);
    }
    double[] times = new double[steps];
    for (int i = 0; i < steps; i++) {
      long start = System.nanoTime();
      tokens = step(sequences, tokens);
      times[i] = (System.nanoTime() - start) / 1e6;
    }
    free();
    Arrays.sort(times);
    return times[steps / 2];
  }

  private void single(String method, int context) {
    peak = 0;
    try (KvCache cache = cache(method);
        KvSequence sequence = cache.newSequence()) {
      fill(cache, sequence, context);
      Map<String, Object> row = row("single", method, context);
      double step = time(List.of(sequence), 41);
      row.put("ms", step);
      KernelTimes kernels = new KernelTimes(decoder, device, cache, List.of(sequence), model);
      row.put("kernels ms", kernels.sum());
      row.put("step/kernels", step / kernels.sum());
      row.put("cache GB", cache.stats().bytes() / 1e9);
      row.put("peak GB", peak / 1e9);
      kernels.all().forEach((name, ms) -> row.put(name, ms));
      print(row);
    }
  }

  private void prompt(String method) {
    peak = 0;
    int chunk = 2048;
    int length = 8192;
    int[] tokens = new int[length];
    Arrays.setAll(tokens, i -> i * 31 % model.config().vocabulary());
    double best = Double.MAX_VALUE;
    for (int run = 0; run < 3; run++) {
      try (KvCache cache = cache(method);
          KvSequence sequence = cache.newSequence()) {
        long start = System.nanoTime();
        for (int at = 0; at < length; at += chunk) {
          decoder.decode(
              List.of(new Decoder.Feed(sequence, tokens, at, chunk, at + chunk == length ? 1 : 0)),
              (feed, token, logits) -> {});
        }
        best = Math.min(best, (System.nanoTime() - start) / 1e9);
        free();
      }
    }
    Map<String, Object> row = row("prompt", method, length);
    row.put("tokens/s", length / best);
    row.put("peak GB", peak / 1e9);
    print(row);
  }

  /** As many sequences as fit below a limit, or the device's memory. */
  private void largest(String method, int context, long limit) {
    peak = 0;
    try (KvCache cache = cache(method)) {
      List<KvSequence> sequences = new ArrayList<>();
      long before = free();
      long total = peak + before;
      long allowed = Math.min(limit == 0 ? total : limit, total) - MARGIN;
      long each = 0;
      while (true) {
        long used = total - free();
        if (!sequences.isEmpty() && used + each > allowed) {
          break;
        }
        KvSequence sequence = cache.newSequence();
        try {
          fill(cache, sequence, context);
        } catch (KvException e) {
          if (!(e instanceof BudgetExceededException) && e.code() != KvException.Code.OUT_OF_MEMORY) {
            throw e;
          }
          sequence.close();
          break;
        }
        sequences.add(sequence);
        each = cache.stats().bytes() / sequences.size();
      }
      Map<String, Object> row = row("largest", method, context);
      double step = time(sequences, 7);
      row.put("batch", sequences.size());
      row.put("ms", step);
      row.put("tokens/s", 1000 * sequences.size() / step);
      row.put("cache GB", cache.stats().bytes() / 1e9);
      row.put("peak GB", peak / 1e9);
      print(row);
    }
  }
}
