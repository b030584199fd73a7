package dev.kvasir.runner;

import static dev.kvasir.Testing.difference;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.kvasir.ElementType;
import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.Kvasir;
import dev.kvasir.LabModel;
import dev.kvasir.Precision;
import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.internal.model.ModelOperations;
import dev.kvasir.internal.model.NativeFloats;
import dev.kvasir.internal.model.NativeWeights;
import dev.kvasir.runner.file.WeightType;
import dev.kvasir.runner.file.Weights;
import dev.kvasir.tensor.TensorType;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.FloatPointer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Models on a GPU, against double precision and against the CPU; skipped where there is none. */
@Timeout(300)
class CudaRunnerTest {

  @TempDir Path folder;

  private static boolean available() {
    return Kvasir.backends().stream().anyMatch(backend -> backend.name().equals("cuda") && backend.available());
  }

  private static void assumeDevice() {
    assumeTrue(available(), "there is no GPU here");
  }

  private static int[] tokens(long seed, int count) {
    return new Random(seed).ints(count, 0, 256).toArray();
  }

  private static float[] floats(double[] values) {
    float[] out = new float[values.length];
    for (int i = 0; i < out.length; i++) {
      out[i] = (float) values[i];
    }
    return out;
  }

  @Test
  void withoutADeviceItSaysWhatIsMissing() throws Exception {
    assumeTrue(!available(), "there is a GPU here");
    TinyModel.qwen2(folder, 1);
    Model model = Model.load(folder);
    assertThrows(NativeUnavailableException.class, () -> new Decoder(model, "cuda", Precision.EXACT));
    assertThrows(NativeUnavailableException.class, () -> Engine.builder(model).backend("cuda").build());
  }

  /**
   * The bound of exact products is that of the CPU (DecoderTest): weights are bfloat16 in the file. Fast ones round what
   * goes into each of 14 products and what comes out of it, by 2^-8 at most: a tenth of the logits' length is twice what
   * the worst of these tokens has, and a wrong head or angle is off by all of it.
   */
  @Test
  void logitsAreThoseOfDoublePrecision() throws Exception {
    assumeDevice();
    for (boolean llama : new boolean[] {false, true}) {
      TinyModel reference =
          llama ? TinyModel.llama(folder, 12, TensorType.BF16) : TinyModel.qwen2(folder, 11);
      Model model = Model.load(folder);
      int[] all = tokens(1, 300);
      double[][] expected = reference.logits(all);
      for (Precision precision : Precision.values()) {
        double bound = precision == Precision.EXACT ? 3e-3 : 0.1;
        try (Decoder decoder = new Decoder(model, "cuda", precision);
            KvCache cache = KvCache.builder(model.geometry()).backend("cuda").build();
            KvSequence pieces = cache.newSequence()) {
          double[] worst = {0};
          int at = 0;
          for (int count : new int[] {1, 1, 5, 120, 2, 1, 170}) {
            decoder.decode(
                List.of(new Decoder.Feed(pieces, all, at, count, count)),
                (feed, token, logits) ->
                    worst[0] = Math.max(worst[0], difference(floats(expected[token]), logits)));
            at += count;
          }
          System.out.printf("%s on cuda, %s: logits off by %.1e at most%n", llama ? "llama" : "qwen2", precision, worst[0]);
          assertTrue(worst[0] < bound, precision + ": off by " + worst[0]);
        }
      }
    }
  }

  /** Memory that is taken again holds anything, NaN too. */
  @Test
  void productsDoNotDependOnWhatWasInTheirPlace() {
    assumeDevice();
    int rows = 3;
    int outputs = 16;
    int inputs = 64;
    try (CudaDevice device = new CudaDevice()) {
      long in = filled(device, rows * inputs, ONE);
      long weights = filled(device, outputs * inputs, ONE);
      for (ElementType type : List.of(ElementType.FLOAT32, ElementType.BFLOAT16)) {
        int shorts = rows * outputs * type.bytes() / Short.BYTES;
        long out = filled(device, shorts, (short) 0xffff); // NaN in either type
        device.product(in, weights, rows, outputs, inputs, type, out);
        ByteBuffer found = ByteBuffer.allocateDirect(Short.BYTES * shorts).order(ByteOrder.nativeOrder());
        device.download(out, found.capacity(), new BytePointer(found));
        for (int i = 0; i < rows * outputs; i++) {
          boolean wide = type == ElementType.FLOAT32;
          int bits = wide ? found.getInt(4 * i) : found.getShort(2 * i) << 16;
          assertEquals(inputs, Float.intBitsToFloat(bits), type + " " + i);
        }
      }
    }
  }

  private static final short ONE = 0x3f80; // in bfloat16

  private static long filled(CudaDevice device, int shorts, short value) {
    ByteBuffer bytes = ByteBuffer.allocateDirect(Short.BYTES * shorts).order(ByteOrder.nativeOrder());
    for (int i = 0; i < shorts; i++) {
      bytes.putShort(Short.BYTES * i, value);
    }
    long address = device.allocate(bytes.capacity());
    device.upload(new BytePointer(bytes), bytes.capacity(), address);
    return address;
  }

  @Test
  void normsOfHeadsAndNeighbouringChannels() throws Exception {
    assumeDevice();
    Path file = folder.resolve("tiny.gguf");
    for (String type : List.of("qwen3", "llama")) {
      TinyModel.gguf(file, type, 18);
      Model model = Model.load(file);
      try (Decoder cpu = rounded(model);
          Decoder gpu = new Decoder(model, "cuda", Precision.EXACT)) {
        assertTrue(difference(logits(cpu, "cpu", tokens(2, 200)), logits(gpu, "cuda", tokens(2, 200))) < 3e-3, type);
      }
    }
  }

  private static float[] logits(Decoder decoder, String backend, int[] tokens) {
    var builder = KvCache.builder(decoder.model().geometry());
    try (KvCache cache = (backend.equals("cuda") ? builder.backend(backend) : builder).build();
        KvSequence sequence = cache.newSequence()) {
      return decoder.decode(sequence, tokens);
    }
  }

  /** A trained model: CPU and GPU on the weights that the GPU has, which are rounded to bfloat16. */
  @Test
  void logitsAreThoseOfTheCpu() throws Exception {
    assumeDevice();
    String shared = System.getProperty("kvasir.shared", "");
    Path model = Path.of(shared, "models", "lab-a");
    compare(Model.load(Files.exists(model.resolve("config.json")) ? model : LabModel.folder()), tokens(3, 500));
  }

  @Test
  void logitsOfARealModelAreThoseOfTheCpu() throws Exception {
    assumeDevice();
    Model model = RealModelTest.model();
    compare(model, model.tokenizer().encode("The Eiffel Tower is located in the city of Paris, France. ".repeat(20)));
  }

  private static void compare(Model model, int[] tokens) {
    try (Decoder cpu = rounded(model)) {
      float[] expected = logits(cpu, "cpu", tokens);
      for (Precision precision : Precision.values()) {
        try (Decoder gpu = new Decoder(model, "cuda", precision)) {
          double off = difference(expected, logits(gpu, "cuda", tokens));
          System.out.printf("%s on cuda, %s: logits %.1e from those of the CPU%n", model.name(), precision, off);
          assertTrue(off < (precision == Precision.EXACT ? 1e-2 : 5e-2), precision + ": off by " + off);
        }
      }
    }
  }

  @Test
  void everyMethodOfFourBitsAndMoreKnowsWhereTheTowerIs() throws Exception {
    assumeDevice();
    Model model = RealModelTest.model();
    int[] prompt = RealModelTest.askForTheTower(model.chatTemplate());
    for (Precision precision : Precision.values()) {
      for (KvMethod method : RealModelTest.FOUR_BITS_AND_MORE) {
        try (Engine engine = Engine.builder(model).backend("cuda").precision(precision).method(method).build();
            Session session = engine.newSession()) {
          session.append(prompt);
          String answer = session.generate(Generation.greedy(model, 16)).join().text();
          assertTrue(answer.contains("Paris"), method + ", " + precision + ": " + answer);
        }
      }
    }
  }

  @Test
  void sixtyFourSessionsGetWhatTheyGetAlone() throws Exception {
    assumeDevice();
    TinyModel.llama(folder, 31, TensorType.BF16);
    together(Model.load(folder), tokens(5, 200));
  }

  @Test
  void sixtyFourSessionsOfARealModelGetWhatTheyGetAlone() throws Exception {
    assumeDevice();
    Model model = RealModelTest.model();
    together(model, model.tokenizer().encode("Once upon a time there was a king who had three daughters. ".repeat(12)));
  }

  private static void together(Model model, int[] text) {
    List<CompletableFuture<Generation.Result>> results = new ArrayList<>();
    try (Engine together = Engine.builder(model).backend("cuda").build();
        Engine single = Engine.builder(model).backend("cuda").build()) {
      for (int i = 0; i < 64; i++) {
        Session session = together.newSession();
        session.append(Arrays.copyOf(text, 1 + i * 2));
        results.add(session.generate(new Generation(8 + i % 4, Sampling.GREEDY, Set.of(), null)));
      }
      for (int i = 0; i < 64; i++) {
        try (Session alone = single.newSession()) {
          alone.append(Arrays.copyOf(text, 1 + i * 2));
          assertEquals(
              alone.generate(new Generation(8 + i % 4, Sampling.GREEDY, Set.of(), null)).join().tokens(),
              results.get(i).join().tokens(),
              "session " + i);
        }
      }
    }
  }

  /**
   * Steps of a batch that runs as a graph against those of one that does not, because it is watched. Lengths cross the
   * ends of pages, the batch loses a sequence, and another one is cut. Both have the same kernels; blocks may share the
   * tokens out differently, so sums differ in the last bits of a float32, through 2 layers.
   */
  @Test
  void recordedStepsAreThoseThatWereNot() throws Exception {
    assumeDevice();
    TinyModel.llama(folder, 32, TensorType.BF16);
    Model model = Model.load(folder);
    for (KvMethod method : RealModelTest.FOUR_BITS_AND_MORE) {
      try (Decoder recorded = new Decoder(model, "cuda", Precision.EXACT);
          Decoder plain = new Decoder(model, "cuda", Precision.EXACT);
          KvCache first = KvCache.builder(model.geometry()).method(method).backend("cuda").build();
          KvCache second = KvCache.builder(model.geometry()).method(method).backend("cuda").build()) {
        plain.probe((layer, queries, outputs, rows) -> {});
        double worst = 0;
        List<List<float[]>> found = List.of(steps(recorded, first), steps(plain, second));
        for (int i = 0; i < found.get(0).size(); i++) {
          worst = Math.max(worst, difference(found.get(1).get(i), found.get(0).get(i)));
        }
        System.out.printf("%s: recorded steps %.1e from plain ones%n", method, worst);
        assertTrue(worst < 1e-4, method + ": off by " + worst);
      }
    }
  }

  private static List<float[]> steps(Decoder decoder, KvCache cache) {
    List<float[]> all = new ArrayList<>();
    List<KvSequence> sequences = new ArrayList<>();
    for (int length : new int[] {1, 100, 250}) {
      sequences.add(cache.newSequence());
      decoder.decode(sequences.get(sequences.size() - 1), tokens(length, length));
    }
    for (int step = 0; step < 200; step++) {
      if (step == 90) {
        sequences.remove(1).close();
      }
      if (step == 150) {
        sequences.get(1).truncate(sequences.get(1).length(0) - 3);
      }
      int[] next = tokens(1000 + step, 1);
      decoder.decode(
          sequences.stream().map(each -> Decoder.Feed.of(each, next)).toList(),
          (feed, token, logits) -> all.add(logits.clone()));
    }
    return all;
  }

  /** The device's choice against the sampler's, which sees the logits. */
  @Test
  void theDeviceChoosesWhatTheSamplerWould() throws Exception {
    assumeDevice();
    TinyModel.qwen2(folder, 41);
    Model model = Model.load(folder);
    try (Engine engine = Engine.builder(model).backend("cuda").build();
        Session greedy = engine.newSession();
        Session watched = engine.newSession()) {
      greedy.append(tokens(6, 50));
      watched.append(tokens(6, 50));
      // A penalty over a window of no tokens changes nothing, but needs the logits.
      Sampling same = new Sampling(0, 0, 1, 0, 2, 0, 0);
      assertEquals(
          watched.generate(new Generation(20, same, Set.of(), null)).join().tokens(),
          greedy.generate(new Generation(20, Sampling.GREEDY, Set.of(), null)).join().tokens());
    }
  }

  /** Memory for logits is locked a few times while a batch grows, and not once for each of its sizes. */
  @Test
  void logitsOfAGrowingBatchTakeFewMemories() throws Exception {
    assumeDevice();
    TinyModel.qwen2(folder, 42);
    ModelConfig config = Model.load(folder).config();
    for (Precision precision : Precision.values()) {
      try (CudaCompute compute = new CudaCompute(config, precision)) {
        Compute.Rows logits = compute.logits(config.vocabulary());
        List<FloatPointer> places = new ArrayList<>();
        for (int rows = 1; rows <= 64; rows++) {
          FloatBuffer found = compute.read(logits, rows);
          assertEquals(rows * config.vocabulary(), found.remaining());
          FloatPointer place = new FloatPointer(found);
          if (places.isEmpty() || !places.get(places.size() - 1).equals(place)) {
            places.add(place);
          }
        }
        // 1, 2, 4, ... 64 rows.
        assertTrue(places.size() <= 7, places.size() + " memories");
        assertEquals(1, compute.likeliest(logits, 1).length);
        // What was given back is not read: as many rows at once as there is room for.
        int most = Math.min(4096, compute.logitRows(config.vocabulary()));
        assertEquals(most * config.vocabulary(), compute.read(logits, most).remaining());
      }
    }
  }

  /** Each session that comes makes the largest batch of logits so far. */
  @Test
  void sessionsThatComeOneByOneAreSampledAsAlone() throws Exception {
    assumeDevice();
    TinyModel.llama(folder, 43, TensorType.BF16);
    Model model = Model.load(folder);
    // Greedy in its choice, but by the sampler, which needs the logits.
    Sampling sampled = new Sampling(0, 0, 1, 0, 2, 0, 0);
    List<CompletableFuture<Generation.Result>> results = new ArrayList<>();
    try (Engine together = Engine.builder(model).backend("cuda").build();
        Engine single = Engine.builder(model).backend("cuda").build()) {
      for (int i = 0; i < 16; i++) {
        CompletableFuture<Void> begun = new CompletableFuture<>();
        Session session = together.newSession();
        session.append(tokens(50 + i, 5 + i));
        results.add(
            session.generate(new Generation(100, sampled, Set.of(), (token, text) -> begun.complete(null))));
        begun.join();
      }
      for (int i = 0; i < 16; i++) {
        try (Session alone = single.newSession()) {
          alone.append(tokens(50 + i, 5 + i));
          assertEquals(
              alone.generate(new Generation(100, sampled, Set.of(), null)).join().tokens(),
              results.get(i).join().tokens(),
              "session " + i);
        }
      }
    }
  }

  /** The CPU with weights rounded to bfloat16, as they are on a GPU. */
  private static Decoder rounded(Model model) {
    Compute host = new HostCompute(model.config());
    Compute wrapped =
        (Compute)
            Proxy.newProxyInstance(
                Compute.class.getClassLoader(),
                new Class<?>[] {Compute.class},
                (proxy, method, arguments) -> {
                  if (method.getName().equals("matrix")) {
                    Model.Projection[] parts = (Model.Projection[]) arguments[0];
                    Model.Projection[] found = new Model.Projection[parts.length];
                    Arrays.setAll(found, i -> new Model.Projection(rounded(parts[i].weights()), parts[i].bias()));
                    return host.matrix(found);
                  }
                  try {
                    return method.invoke(host, arguments);
                  } catch (InvocationTargetException e) {
                    throw e.getCause();
                  }
                });
    return new Decoder(model, wrapped);
  }

  private static Weights rounded(Weights weights) {
    int width = weights.width();
    NativeWeights known = new NativeWeights(weights.bytes(), weights.type().code(), weights.rows(), width);
    NativeFloats row = new NativeFloats(width);
    ByteBuffer bytes =
        ByteBuffer.allocateDirect(Math.multiplyExact(2 * weights.rows(), width)).order(ByteOrder.LITTLE_ENDIAN);
    float[] wide = new float[width];
    for (int r = 0; r < weights.rows(); r++) {
      ModelOperations.embed(new int[] {r}, 1, known, row);
      row.buffer().get(0, wide);
      for (float value : wide) {
        int bits = Float.floatToIntBits(value);
        bytes.putShort((short) (bits + 0x7fff + (bits >> 16 & 1) >> 16)); // to nearest, ties to even
      }
    }
    return new Weights(weights.name(), WeightType.BF16, weights.rows(), width, bytes.clear());
  }
}
