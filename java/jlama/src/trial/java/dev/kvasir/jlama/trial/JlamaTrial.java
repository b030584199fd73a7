package dev.kvasir.jlama.trial;

import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.tensor.AbstractTensor;
import com.github.tjake.jlama.tensor.KvBufferCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvStats;
import dev.kvasir.jlama.JlamaCache;
import dev.kvasir.method.HalfPrecision;
import dev.kvasir.method.Uniform;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;

/**
 * Greedy answers of one model with Jlama's float32 cache and with compressed ones, token by token; memory and tokens a second.
 *
 * <p>Arguments: a new folder for the model, the number of prompts, the most tokens of an answer. Fails where an answer of 16 or 8
 * bits is not Jlama's own.
 */
public final class JlamaTrial {

  private static final int STEPS = 64;

  private final AbstractModel model;
  private final List<int[]> prompts = new ArrayList<>();
  private final int answer;

  private JlamaTrial(AbstractModel model, int prompts, int answer) throws IOException {
    this.model = model;
    this.answer = answer;
    for (String prompt : SmallModel.prompts(prompts)) {
      this.prompts.add(SmallModel.tokens(prompt));
    }
  }

  public static void main(String[] args) throws IOException {
    int prompts = Integer.parseInt(args[1]);
    int answer = Integer.parseInt(args[2]);
    try (AbstractModel model = SmallModel.load(SmallModel.write(Path.of(args[0])))) {
      JlamaTrial trial = new JlamaTrial(model, prompts, answer);
      trial.warmUp();
      boolean equal = trial.compare();
      if (prompts >= 100) {
        trial.timeLongSession();
      }
      System.exit(equal ? 0 : 1);
    }
  }

  private void warmUp() {
    run(prompts.get(0), Optional.empty());
    try (JlamaCache cache = JlamaCache.attach(model)) {
      run(prompts.get(0), Optional.of(cache));
    }
  }

  /** Whether 16 and 8 bits answer as Jlama does. */
  private boolean compare() {
    Map<String, KvMethod> methods = new LinkedHashMap<>();
    methods.put("float16", new HalfPrecision());
    methods.put("8 bits", Uniform.bits(8));
    Times jlama = new Times();
    List<int[]> expected = answers(Optional.empty(), jlama);
    System.out.printf("%d prompts of %d tokens on average, answers of up to %d%n", prompts.size(), mean(), answer);
    System.out.printf("%-10s %28s %18s %18s%n", "cache", "answers equal to Jlama's", "prompt tokens/s", "answer tokens/s");
    jlama.print("Jlama", expected.size(), expected.size());
    boolean equal = true;
    for (Map.Entry<String, KvMethod> method : methods.entrySet()) {
      try (JlamaCache cache = JlamaCache.attach(model, method.getValue())) {
        Times times = new Times();
        List<int[]> got = answers(Optional.of(cache), times);
        int same = 0;
        for (int i = 0; i < got.size(); i++) {
          if (Arrays.equals(got.get(i), expected.get(i))) {
            same++;
          } else {
            System.out.printf(
                "  prompt %d differs from token %d on%n", i, Arrays.mismatch(got.get(i), expected.get(i)));
          }
        }
        times.print(method.getKey(), same, got.size());
        equal &= same == got.size();
      }
    }
    return equal;
  }

  private List<int[]> answers(Optional<JlamaCache> cache, Times times) {
    List<int[]> answers = new ArrayList<>();
    for (int[] prompt : prompts) {
      Run run = run(prompt, cache);
      answers.add(run.tokens);
      times.promptTokens += prompt.length;
      times.promptNanos += run.promptNanos;
      times.answerTokens += run.steps;
      times.answerNanos += run.answerNanos;
    }
    return answers;
  }

  private Run run(int[] prompt, Optional<JlamaCache> cache) {
    UUID session = UUID.randomUUID();
    Run run = new Run(answer);
    try (KvBufferCache.KvBuffer buffer = cache.map(c -> c.buffer(session)).orElseGet(() -> new KvBufferCache(model).getKvBuffer(session));
        AbstractTensor<?, ?> logits = model.makeDenseTensor(model.getConfig().vocabularySize)) {
      long start = System.nanoTime();
      AbstractTensor<?, ?> output = model.batchForward(prompt, 0, buffer);
      run.tokens[0] = next(output, output.shape().first() - 1, logits);
      long read = System.nanoTime();
      // Jlama ends an answer where the model does.
      for (int i = 1; i < answer && !model.getConfig().eosTokens.contains(run.tokens[i - 1]); i++) {
        output = model.forward(run.tokens[i - 1], prompt.length + i - 1, buffer, Optional.empty());
        run.tokens[i] = next(output, 0, logits);
        run.steps++;
      }
      run.promptNanos = read - start;
      run.answerNanos = System.nanoTime() - read;
    }
    cache.ifPresent(c -> c.forget(session));
    return run;
  }

  private int next(AbstractTensor<?, ?> output, int row, AbstractTensor<?, ?> logits) {
    int token = model.sample(output.slice(row), 0, 0, logits);
    output.close();
    return token;
  }

  /** One session up to the model's context: what it holds and how fast it is at its end. */
  private void timeLongSession() {
    int context = model.getConfig().contextLength - 16; // Jlama's RoPE looks up to twice its kv heads beyond a position
    int[] text =
        Arrays.copyOf(prompts.stream().flatMapToInt(Arrays::stream).toArray(), context - STEPS); // one after the other
    System.out.printf("a session of %d tokens%n", context);
    System.out.printf("%-10s %12s %18s %18s%n", "cache", "bytes", "prompt tokens/s", "answer tokens/s");
    long own = 2L * Float.BYTES * context * model.getConfig().kvLength * model.getConfig().numberOfLayers;
    time("Jlama", text, Optional.empty(), own);
    for (int bits : new int[] {16, 8, 4, 2}) {
      KvMethod method = bits == 16 ? new HalfPrecision() : Uniform.bits(bits);
      try (JlamaCache cache = JlamaCache.attach(model, method)) {
        time(bits + " bits", text, Optional.of(cache), 0);
      }
    }
  }

  private void time(String name, int[] text, Optional<JlamaCache> cache, long bytes) {
    UUID session = UUID.randomUUID();
    try (KvBufferCache.KvBuffer buffer = cache.map(c -> c.buffer(session)).orElseGet(() -> new KvBufferCache(model).getKvBuffer(session))) {
      long start = System.nanoTime();
      model.batchForward(text, 0, buffer).close();
      long read = System.nanoTime();
      for (int i = 0; i < STEPS; i++) {
        model.forward(text[i], text.length + i, buffer, Optional.empty()).close();
      }
      long end = System.nanoTime();
      long held = cache.map(c -> c.cache().stats()).map(KvStats::bytes).orElse(bytes);
      System.out.printf(
          "%-10s %12d %18.0f %18.0f%n", name, held, text.length * 1e9 / (read - start), STEPS * 1e9 / (end - read));
    }
  }

  private int mean() {
    return prompts.stream().mapToInt(prompt -> prompt.length).sum() / prompts.size();
  }

  private static final class Run {
    final int[] tokens;
    int steps;
    long promptNanos;
    long answerNanos;

    Run(int answer) {
      tokens = new int[answer];
    }
  }

  private static final class Times {
    long promptTokens;
    long promptNanos;
    long answerTokens;
    long answerNanos;

    void print(String name, int same, int all) {
      System.out.printf(
          "%-10s %21d of %3d %18.0f %18.0f%n",
          name, same, all, promptTokens * 1e9 / promptNanos, answerTokens * 1e9 / answerNanos);
    }
  }
}
