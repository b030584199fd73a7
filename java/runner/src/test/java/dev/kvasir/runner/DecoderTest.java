package dev.kvasir.runner;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.runner.file.Json;
import dev.kvasir.runner.file.ModelException;

import dev.kvasir.tensor.TensorType;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The runner against a forward pass in double precision, on random models of both architectures. */
class DecoderTest {

  @TempDir Path folder;

  private static int[] tokens(long seed, int count) {
    return new Random(seed).ints(count, 0, TinyModel.VOCABULARY).toArray();
  }

  /**
   * Keys and values are rounded to float16, 2^-12 relative on average and 2^-11 at most; with two layers of it and
   * weights of gain 1.5, a hundredth of the logits' length is far off, and a wrong angle or head is off by all of it.
   */
  private static void assertClose(double[] expected, float[] found, String what) {
    double squares = 0;
    double all = 0;
    for (int i = 0; i < expected.length; i++) {
      squares += Math.pow(expected[i] - found[i], 2);
      all += expected[i] * expected[i];
    }
    assertTrue(Math.sqrt(squares / all) < 3e-3, what + ": off by " + Math.sqrt(squares / all));
  }

  private void check(TinyModel reference) throws IOException {
    check(reference, folder);
  }

  private void check(TinyModel reference, Path path) throws IOException {
    Model model = Model.load(path);
    Decoder decoder = new Decoder(model);
    int[] all = tokens(1, 300);
    double[][] expected = reference.logits(all);
    try (KvCache cache = KvCache.builder(model.geometry()).build();
        KvSequence whole = cache.newSequence();
        KvSequence pieces = cache.newSequence()) {
      List<float[]> found = new ArrayList<>();
      decoder.decode(
          List.of(new Decoder.Feed(whole, all, 0, all.length, all.length)),
          (feed, token, logits) -> {
            assertEquals(found.size(), token);
            found.add(logits.clone());
          });
      assertEquals(all.length, found.size());
      for (int t = 0; t < all.length; t++) {
        assertClose(expected[t], found.get(t), "token " + t + " of the whole");
      }
      int at = 0;
      for (int count : new int[] {1, 1, 5, 120, 2, 1, 170}) {
        decoder.decode(
            List.of(new Decoder.Feed(pieces, all, at, count, 1)),
            (feed, token, logits) -> assertClose(expected[token], logits, "token " + token + " in pieces"));
        at += count;
      }
      assertEquals(300, at);
    }
  }

  @Test
  void qwen2InBfloat16() throws Exception {
    check(TinyModel.qwen2(folder, 11));
  }

  @Test
  void qwen3WithNormsOfHeads() throws Exception {
    check(TinyModel.qwen3(folder, 18));
  }

  @Test
  void llamaWithBiases() throws Exception {
    TinyModel reference = TinyModel.biased(folder, 24);
    check(reference);
    Path file = folder.resolve("biased.gguf");
    reference.gguf().write(file);
    check(reference, file);
  }

  @Test
  void mistralSeesItsWindow() throws Exception {
    for (int window : new int[] {1, 100, 128, 299, 300}) {
      check(TinyModel.mistral(folder, 25, window));
    }
  }

  @Test
  void ggufOfEveryArchitecture() throws Exception {
    Path file = folder.resolve("tiny.gguf");
    for (String type : List.of("llama", "qwen2", "qwen3")) {
      check(TinyModel.gguf(file, type, 19), file);
    }
  }

  /** Tensors have one name, however users of a language write numbers. */
  @Test
  void whereNumbersHaveOtherDigits() throws Exception {
    TinyModel reference = TinyModel.qwen2(folder, 26);
    Path file = folder.resolve("tiny.gguf");
    reference.gguf().write(file);
    Locale before = Locale.getDefault();
    Locale.setDefault(Locale.forLanguageTag("ar-EG"));
    try {
      check(reference);
      check(reference, file);
    } finally {
      Locale.setDefault(before);
    }
  }

  @Test
  void aFailureCutsSequencesBack() throws Exception {
    TinyModel.qwen2(folder, 20);
    Decoder decoder = new Decoder(Model.load(folder));
    Decoder.LogitSink nothing = (feed, token, logits) -> {};
    // Room for the second layer is refused within a step.
    try (KvCache cache = KvCache.builder(decoder.model().geometry()).layerBudgetBytes(1, 1 << 16).build();
        KvSequence small = cache.newSequence();
        KvSequence large = cache.newSequence()) {
      decoder.decode(small, 1, 2, 3);
      Decoder.Feed fits = Decoder.Feed.of(small, 4);
      Decoder.Feed tooMuch = new Decoder.Feed(large, tokens(2, 900), 0, 900, 0);
      assertThrows(BudgetExceededException.class, () -> decoder.decode(List.of(fits, tooMuch), nothing));
      assertEquals(3, small.length());
      assertEquals(3, small.length(0));
      assertEquals(0, large.length(0));
      decoder.decode(List.of(fits), nothing);
      assertEquals(4, small.length());
    }
  }

  private static void cutInHalf(Path file) throws IOException {
    try (FileChannel channel = FileChannel.open(file, StandardOpenOption.WRITE)) {
      channel.truncate(channel.size() / 2);
    }
  }

  /** What native code reads beyond the end of a mapped file ends the program: it must not come to that. */
  @Test
  void aMappedFileThatWasCutShortIsRefusedBeforeAStep() throws Exception {
    Path file = folder.resolve("cut.gguf");
    TinyModel.gguf(file, "llama", 21);
    Decoder decoder = new Decoder(Model.load(file));
    try (KvCache cache = KvCache.builder(decoder.model().geometry()).build();
        KvSequence sequence = cache.newSequence()) {
      decoder.decode(sequence, 1, 2, 3);
      cutInHalf(file);
      UncheckedIOException e = assertThrows(UncheckedIOException.class, () -> decoder.decode(sequence, 4));
      assertTrue(e.getCause() instanceof ModelException, e.toString());
      assertTrue(e.getMessage().contains("cut short"), e.getMessage());
      assertEquals(3, sequence.length());
    }
    assertThrows(ModelException.class, () -> Model.load(file));
  }

  @Test
  void copiedWeightsNeedNoFile() throws Exception {
    Path file = folder.resolve("copied.gguf");
    TinyModel reference = TinyModel.gguf(file, "qwen2", 22);
    Model model = Model.load(file, true);
    Decoder mapped = new Decoder(Model.load(file));
    Decoder copied = new Decoder(model);
    try (KvCache cache = KvCache.builder(model.geometry()).build();
        KvSequence one = cache.newSequence();
        KvSequence other = cache.newSequence()) {
      float[] expected = mapped.decode(one, 5, 6, 7);
      assertClose(reference.logits(new int[] {5, 6, 7})[2], expected, "mapped");
      cutInHalf(file);
      assertArrayEquals(expected, copied.decode(other, 5, 6, 7));
    }
  }

  @Test
  void aModelInSeveralFilesIsOne() throws Exception {
    TinyModel reference = TinyModel.gguf(folder.resolve("whole.gguf"), "qwen3", 23);
    int[] tokens = {5, 6, 7};
    for (boolean inFirst : new boolean[] {true, false}) {
      List<GgufWriter> parts = reference.gguf().split(3, inFirst);
      for (int i = 0; i < 3; i++) {
        parts.get(i).write(folder.resolve(String.format("tiny-%05d-of-00003.gguf", i + 1)));
      }
      Path first = folder.resolve("tiny-00001-of-00003.gguf");
      for (boolean copied : new boolean[] {true, false}) {
        Decoder decoder = new Decoder(Model.load(first, copied));
        try (KvCache cache = KvCache.builder(decoder.model().geometry()).build();
            KvSequence sequence = cache.newSequence()) {
          assertClose(reference.logits(tokens)[2], decoder.decode(sequence, tokens), "copied: " + copied);
          cutInHalf(folder.resolve("tiny-00003-of-00003.gguf"));
          if (copied) {
            decoder.decode(sequence, 8);
          } else {
            UncheckedIOException e = assertThrows(UncheckedIOException.class, () -> decoder.decode(sequence, 8));
            assertTrue(e.getMessage().contains("tiny-00003"), e.getMessage());
          }
          parts.get(2).write(folder.resolve("tiny-00003-of-00003.gguf"));
        }
      }
    }
  }

  @Test
  void llamaInFloat32() throws Exception {
    check(TinyModel.llama(folder, 12, TensorType.F32));
  }

  @Test
  void llamaInFloat16() throws Exception {
    check(TinyModel.llama(folder, 13, TensorType.F16));
  }

  @Test
  void sequencesOfABatchDoNotMeet() throws Exception {
    TinyModel reference = TinyModel.qwen2(folder, 14);
    Model model = Model.load(folder);
    Decoder decoder = new Decoder(model);
    int[] lengths = {3, 40, 140, 7};
    try (KvCache cache = KvCache.builder(model.geometry()).build()) {
      List<KvSequence> sequences = new ArrayList<>();
      List<Decoder.Feed> prompts = new ArrayList<>();
      for (int i = 0; i < lengths.length; i++) {
        sequences.add(cache.newSequence());
        prompts.add(new Decoder.Feed(sequences.get(i), tokens(20 + i, 200), 0, lengths[i], i % 2));
      }
      List<Integer> served = new ArrayList<>();
      decoder.decode(
          prompts,
          (feed, token, logits) -> {
            served.add(feed);
            assertEquals(lengths[feed] - 1, token);
          });
      assertEquals(List.of(1, 3), served);
      for (int step = 0; step < 5; step++) {
        List<Decoder.Feed> next = new ArrayList<>();
        for (int i = 0; i < lengths.length; i++) {
          next.add(new Decoder.Feed(sequences.get(i), tokens(20 + i, 200), lengths[i] + step, 1, 1));
        }
        decoder.decode(
            next,
            (feed, token, logits) -> {
              int[] seen = java.util.Arrays.copyOf(tokens(20 + feed, 200), token + 1);
              assertClose(reference.logits(seen)[token], logits, "sequence " + feed + ", token " + token);
            });
      }
      assertEquals(145, sequences.get(2).length());
    }
  }

  @Test
  void probeSeesQueriesAndOutputs() throws Exception {
    TinyModel.qwen2(folder, 15);
    Decoder decoder = new Decoder(Model.load(folder));
    List<Integer> layers = new ArrayList<>();
    try (KvCache cache = KvCache.builder(decoder.model().geometry()).build();
        KvSequence sequence = cache.newSequence()) {
      decoder.probe(
          (layer, queries, outputs, rows) -> {
            layers.add(layer);
            assertEquals(3, rows);
            float[] query = new float[3 * TinyModel.HEADS * TinyModel.HEAD_DIM];
            float[] again = new float[query.length];
            queries.get(0, query);
            sequence.attend(layer, query, again, 3);
            float[] output = new float[query.length];
            outputs.get(0, output);
            assertArrayEquals(output, again, 1e-6f);
          });
      decoder.decode(sequence, 1, 2, 3);
    }
    assertEquals(List.of(0, 1), layers);
    assertTrue(decoder.attentionNanos() > 0);
  }

  @Test
  void badRequestsAreRefused() throws Exception {
    TinyModel.qwen2(folder, 16);
    Decoder decoder = new Decoder(Model.load(folder));
    Class<IllegalArgumentException> refused = IllegalArgumentException.class;
    Decoder.LogitSink nothing = (feed, token, logits) -> {};
    try (KvCache cache = KvCache.builder(decoder.model().geometry()).build();
        KvCache other = KvCache.builder(decoder.model().geometry()).build();
        KvSequence a = cache.newSequence();
        KvSequence b = other.newSequence()) {
      assertThrows(refused, () -> decoder.decode(List.of(), nothing));
      assertThrows(refused, () -> decoder.decode(a, 260));
      assertThrows(refused, () -> decoder.decode(a, -1));
      assertThrows(refused, () -> decoder.decode(a));
      Decoder.Feed one = Decoder.Feed.of(a, 1);
      assertThrows(refused, () -> decoder.decode(List.of(one, one), nothing));
      assertThrows(refused, () -> decoder.decode(List.of(one, Decoder.Feed.of(b, 1)), nothing));
      assertThrows(
          refused, () -> decoder.decode(List.of(new Decoder.Feed(a, new int[3], 2, 2, 0)), nothing));
      assertThrows(
          refused, () -> decoder.decode(List.of(new Decoder.Feed(a, new int[3], 0, 2, 3)), nothing));
      assertEquals(0, a.length());
    }
  }

  @Test
  void badModelsAreRefusedByName() throws Exception {
    TinyModel.qwen2(folder, 17);
    Path config = folder.resolve("config.json");
    String good = Files.readString(config);
    String[][] cases = {
      {"qwen2", "gpt2", "gpt2"},
      {"silu", "gelu", "gelu"},
      {"\"hidden_size\": 64", "\"hidden_size\": \"wide\"", "hidden_size"},
      {"\"hidden_size\": 64", "\"hidden_size\": 0", "hidden_size"},
      {"\"hidden_size\": 64", "\"hidden_size\": 128", "model.embed_tokens.weight"},
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "model.layers.2"},
      {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "kv heads"},
      {"\"use_sliding_window\": false", "\"use_sliding_window\": true", "use_sliding_window"},
      {"\"rope_theta\": 10000.0", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4}", "dynamic"},
      {"\"vocab_size\": 260", "\"vocab_size\": 6000", "tokenizer.json"},
      {"\"vocab_size\"", "\"vocabulary\"", "vocab_size"},
      {"\"rms_norm_eps\": 1e-5", "\"rms_norm_eps\": -1", "epsilon"},
      {"\"max_position_embeddings\": 1024", "\"max_position_embeddings\": 0", "positions"},
      {"\"head_dim\": 32", "\"head_dim\": 2147483647", "2147483647"},
      {"{", "[", "config.json"},
    };
    for (String[] wrong : cases) {
      assertTrue(good.contains(wrong[0]), wrong[0]);
      Files.writeString(config, good.replace(wrong[0], wrong[1]));
      ModelException e = assertThrows(ModelException.class, () -> Model.load(folder), wrong[2]);
      assertTrue(e.getMessage().contains(wrong[2]), e.getMessage());
    }
    Files.writeString(config, good.replace("[257, 258]", "[]"));
    assertTrue(ModelConfig.read(folder).ends().isEmpty());
    Files.delete(config);
    assertThrows(IOException.class, () -> Model.load(folder));
  }

  @Test
  void scaledRopes() throws Exception {
    Path file = Path.of("config.json");
    double[] plain = rope("{}", file);
    double[] linear = rope("{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}}", file);
    double[] llama3 =
        rope(
            "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0,"
                + " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}",
            file);
    for (int j = 0; j < plain.length; j++) {
      assertEquals(Math.pow(10000, -j / 64.0), plain[j], 1e-12);
      assertEquals(plain[j] / 4, linear[j], 1e-12);
      double wavelength = 2 * Math.PI / plain[j];
      double expected = plain[j];
      if (wavelength > 8192) {
        expected = plain[j] / 8;
      } else if (wavelength > 2048) {
        double smooth = (8192 / wavelength - 1) / 3;
        expected = (1 - smooth) * plain[j] / 8 + smooth * plain[j];
      }
      assertEquals(expected, llama3[j], 1e-12);
    }
    String yarn = "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"truncate\": %s},"
        + " \"max_position_embeddings\": 4096}";
    assertEquals(plain[63] / 4, rope(String.format(yarn, true), file)[63], 1e-12);
    ModelException e = assertThrows(ModelException.class, () -> rope(String.format(yarn, false), file));
    assertTrue(e.getMessage().contains("truncate"), e.getMessage());
  }

  private static double[] rope(String config, Path file) throws ModelException {
    return RopeSettings.of(Json.parse(config, "config"), 128, file).frequencies();
  }

  @Test
  void anInterruptedThreadClosesNoMappedFile() throws Exception {
    Path file = folder.resolve("interrupted.gguf");
    TinyModel.gguf(file, "llama", 23);
    Decoder decoder = new Decoder(Model.load(file));
    try (KvCache cache = KvCache.builder(decoder.model().geometry()).build();
        KvSequence sequence = cache.newSequence()) {
      Thread.currentThread().interrupt();
      try {
        decoder.decode(sequence, 1, 2, 3);
      } finally {
        assertTrue(Thread.interrupted(), "whoever was interrupted stays so");
      }
      decoder.decode(sequence, 4);
      cutInHalf(file);
      assertThrows(UncheckedIOException.class, () -> decoder.decode(sequence, 5));
    }
  }
}
