package dev.kvasir.runner.file;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.internal.model.NativeWeights;
import dev.kvasir.rope.Rope;
import dev.kvasir.runner.GgufWriter;
import dev.kvasir.runner.Model;
import dev.kvasir.runner.TinyModel;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** GGUF files, and what is wrong with them said by name. */
class GgufTest {

  @TempDir Path folder;

  private Path written(byte[] bytes) throws IOException {
    return Files.write(folder.resolve("file.gguf"), bytes);
  }

  private static GgufWriter small() {
    GgufWriter out = new GgufWriter();
    out.text("a.text", "Käse");
    out.integer("a.number", 7);
    out.number("a.float", 0.5f);
    out.flag("a.flag", true);
    out.texts("a.texts", List.of("x", "", "yz"));
    out.numbers("a.numbers", 1, -2);
    out.floats("vector", new float[] {1, 2, 3}, List.of(3L));
    out.floats("matrix", new float[] {1, 2, 3, 4, 5, 6}, List.of(2L, 3L));
    return out;
  }

  private void assertPartsRefused(String named) {
    ModelException e =
        assertThrows(ModelException.class, () -> Gguf.open(folder.resolve("m-00001-of-00002.gguf")), named);
    assertTrue(e.getMessage().contains(named), e.getMessage());
  }

  @Test
  void filesOfOneModelAreAskedWhetherTheyAre() throws Exception {
    Path first = folder.resolve("m-00001-of-00002.gguf");
    Path second = folder.resolve("m-00002-of-00002.gguf");
    List<GgufWriter> parts = small().split(2, true);
    parts.get(0).write(first);
    assertThrows(NoSuchFileException.class, () -> Gguf.open(first));
    parts.get(1).write(second);
    try (Gguf file = Gguf.open(first)) {
      assertEquals(Set.of("vector", "matrix"), file.names());
      assertArrayEquals(new float[] {1, 2, 3}, file.read("vector").floats());
      assertArrayEquals(new float[] {1, 2, 3, 4, 5, 6}, file.read("matrix").floats());
    }
    ModelException e = assertThrows(ModelException.class, () -> Gguf.open(second));
    assertTrue(e.getMessage().contains("-00001-of-00002.gguf"), e.getMessage());
    Path renamed = Files.copy(first, folder.resolve("m.gguf"));
    assertTrue(assertThrows(ModelException.class, () -> Gguf.open(renamed)).getMessage().contains("m.gguf"));
    parts.get(1).integer("split.no", 0);
    parts.get(1).write(second);
    assertPartsRefused("split.no is 0");
    parts.get(1).integer("split.no", 1);
    parts.get(1).integer("split.count", 3);
    parts.get(1).write(second);
    assertPartsRefused("split.count is 3");
    parts.get(1).remove("split.count");
    parts.get(1).write(second);
    assertPartsRefused("split.count");
    parts.get(1).integer("split.count", 2);
    parts.get(1).floats("vector", new float[] {1}, List.of(1L));
    parts.get(1).write(second);
    assertPartsRefused("vector");
    parts.get(1).remove("vector");
    parts.get(1).remove("matrix");
    parts.get(1).write(second);
    assertPartsRefused("split.tensors.count is 2");
    parts.get(0).integer("split.count", 1);
    parts.get(0).write(renamed);
    Gguf.open(renamed).close(); // one is all
  }

  @Test
  void readsMetadataAndTensors() throws Exception {
    try (Gguf file = Gguf.open(written(small().bytes()))) {
      assertEquals("Käse", file.text("a.text"));
      assertEquals(7, file.integer("a.number"));
      assertEquals(0.5, file.findNumber("a.float").orElseThrow());
      assertEquals(true, file.findFlag("a.flag").orElseThrow());
      assertArrayEquals(new String[] {"x", "", "yz"}, file.texts("a.texts"));
      assertArrayEquals(new double[] {1, -2}, file.findNumbers("a.numbers").orElseThrow());
      assertArrayEquals(new float[] {1, 2, 3}, file.read("vector").require(1, 3).floats());
      assertArrayEquals(new float[] {1, 2, 3, 4, 5, 6}, file.read("matrix").require(2, 3).floats());
      assertThrows(ModelException.class, () -> file.read("matrix").require(3, 2));
      for (String wrong : List.of("a.number", "b.text")) {
        ModelException e = assertThrows(ModelException.class, () -> file.text(wrong));
        assertTrue(e.getMessage().contains(wrong), e.getMessage());
      }
      assertThrows(ModelException.class, () -> file.read("other"));
    }
  }

  @Test
  void vectorsOfSixteenBitsAreWidened() throws Exception {
    GgufWriter out = new GgufWriter();
    short[] halves = {0x3C00, (short) 0xC000, 0x0001, (short) 0x83FF, 0x7BFF};
    ByteBuffer bytes = ByteBuffer.allocate(10).order(ByteOrder.LITTLE_ENDIAN);
    for (short half : halves) {
      bytes.putShort(half);
    }
    out.tensor("half", 1, bytes.array(), List.of(5L));
    out.tensor("bfloat", 30, new byte[] {(byte) 0x80, 0x3F, 0, (byte) 0xC0}, List.of(2L));
    try (Gguf file = Gguf.open(written(out.bytes()))) {
      float[] expected = {1, -2, 0x1p-24f, -1023 * 0x1p-24f, 65504};
      assertArrayEquals(expected, file.read("half").floats());
      assertArrayEquals(new float[] {1, -2}, file.read("bfloat").floats());
    }
  }

  /** The numbers are those of native code and of every file. */
  @Test
  void typesHaveTheNumbersAndBlocksOfNativeCode() {
    Map<WeightType, Integer> codes =
        Map.ofEntries(
            Map.entry(WeightType.F32, 0), Map.entry(WeightType.F16, 1), Map.entry(WeightType.Q4_0, 2),
            Map.entry(WeightType.Q4_1, 3), Map.entry(WeightType.Q5_0, 6), Map.entry(WeightType.Q5_1, 7),
            Map.entry(WeightType.Q8_0, 8), Map.entry(WeightType.Q2_K, 10), Map.entry(WeightType.Q3_K, 11),
            Map.entry(WeightType.Q4_K, 12), Map.entry(WeightType.Q5_K, 13), Map.entry(WeightType.Q6_K, 14),
            Map.entry(WeightType.IQ2_XXS, 16), Map.entry(WeightType.IQ4_NL, 20), Map.entry(WeightType.IQ4_XS, 23),
            Map.entry(WeightType.BF16, 30));
    assertEquals(WeightType.values().length, codes.size());
    codes.forEach(
        (type, code) -> {
          assertEquals(code, type.code());
          assertEquals(
              2L * type.blockBytes(), NativeWeights.rowBytes(type.code(), 2L * type.blockWeights()), type.name());
          if (type.blockWeights() > 1) {
            assertThrows(
                IllegalArgumentException.class, () -> NativeWeights.rowBytes(type.code(), type.blockWeights() + 1));
          }
        });
  }

  @Test
  void otherTypesAreRefusedByName() throws Exception {
    GgufWriter out = small();
    out.tensor("strange", 9, new byte[36], List.of(32L));
    out.tensor("stranger", 99, new byte[24], List.of(32L));
    try (Gguf file = Gguf.open(written(out.bytes()))) {
      assertTrue(assertThrows(ModelException.class, () -> file.read("strange")).getMessage().contains("Q8_1"));
      assertTrue(assertThrows(ModelException.class, () -> file.read("stranger")).getMessage().contains("99"));
    }
  }

  @Test
  void aFileThatEndsAnywhereIsRefused() throws Exception {
    byte[] good = small().bytes();
    for (int length = 0; length < good.length; length++) {
      Path file = written(Arrays.copyOf(good, length));
      assertThrows(ModelException.class, () -> Gguf.open(file), "cut to " + length);
    }
    Gguf.open(written(good)).close();
  }

  /** Whatever bits flip, there is a model or a ModelException: no other exception, and nothing outside the file. */
  @Test
  void damageIsFoundOrHarmless() throws Exception {
    Path right = folder.resolve("right.gguf");
    TinyModel.gguf(right, "llama", 3);
    byte[] good = Files.readAllBytes(right);
    int header = 9000; // about where the header ends; the weights themselves may be anything
    Random random = new Random(5);
    int refused = 0;
    for (int i = 0; i < 1500; i++) {
      byte[] bad = good.clone();
      for (int n = random.nextInt(3); n >= 0; n--) {
        int at = random.nextInt(header);
        bad[at] = random.nextBoolean() ? (byte) (random.nextInt(3) - 1) : (byte) (bad[at] ^ 1 << random.nextInt(8));
      }
      Path file = written(bad);
      try {
        Model.load(file);
      } catch (ModelException e) {
        refused++;
      }
    }
    assertTrue(refused > 300, refused + " were refused");
  }

  @Test
  void contradictionsAreRefusedByName() throws Exception {
    byte[] good = small().bytes();
    Map<Integer, Integer> wrong = Map.of(0, 1, 4, 9, 15, 127, 23, 127, 8, 3, 16, 7);
    for (Map.Entry<Integer, Integer> change : wrong.entrySet()) {
      byte[] bad = good.clone();
      bad[change.getKey()] = change.getValue().byteValue();
      Path file = written(bad);
      ModelException e = assertThrows(ModelException.class, () -> Gguf.open(file), "byte " + change.getKey());
      assertTrue(e.getMessage().contains("file.gguf"), e.getMessage());
    }
    GgufWriter odd = small();
    odd.integer("general.alignment", 24);
    Path file = written(odd.bytes());
    assertTrue(assertThrows(ModelException.class, () -> Gguf.open(file)).getMessage().contains("alignment"));
    GgufWriter block = small();
    block.tensor("block", 12, new byte[144], List.of(128L));
    Path cut = written(block.bytes());
    assertTrue(assertThrows(ModelException.class, () -> Gguf.open(cut)).getMessage().contains("Q4_K"));
  }

  @Test
  void modelsThatCannotBeRunAreRefusedByName() throws Exception {
    Path file = folder.resolve("model.gguf");
    TinyModel model = TinyModel.gguf(file, "qwen2", 4);
    record Case(String named, Consumer<GgufWriter> change) {}
    List<Case> cases =
        List.of(
            new Case("falcon", out -> out.text("general.architecture", "falcon")),
            new Case("context_length", out -> out.remove("qwen2.context_length")),
            new Case("blk.1.ffn_up.weight", out -> out.remove("blk.1.ffn_up.weight")),
            new Case("expert_count", out -> out.integer("qwen2.expert_count", 8)),
            new Case("longrope", out -> out.text("qwen2.rope.scaling.type", "longrope")),
            new Case("epsilon", out -> out.number("qwen2.attention.layer_norm_rms_epsilon", Float.NaN)),
            new Case("channels", out -> out.integer("qwen2.rope.dimension_count", 16)),
            new Case("unigram", out -> out.text("tokenizer.ggml.model", "unigram")),
            new Case("scores", out -> out.numbers("tokenizer.ggml.scores", 1, 2)),
            new Case("heads", out -> out.integer("qwen2.attention.head_count_kv", 3)),
            new Case("token_embd.weight", out -> out.integer("qwen2.embedding_length", 128)));
    for (Case wrong : cases) {
      GgufWriter out = model.gguf();
      wrong.change().accept(out);
      out.write(file);
      ModelException e = assertThrows(ModelException.class, () -> Model.load(file), wrong.named());
      assertTrue(e.getMessage().contains(wrong.named()), e.getMessage());
    }
  }

  /** What is left out is what llama.cpp takes it for. */
  @Test
  void ropesAreScaledAsTheFileSays() throws Exception {
    double[] plain = rope(out -> {}).frequencies();
    float[] factors = new float[plain.length];
    for (int j = 0; j < factors.length; j++) {
      factors[j] = 1 + j;
    }
    Consumer<GgufWriter> divided = out -> out.floats("rope_freqs.weight", factors, List.of((long) factors.length));
    Consumer<GgufWriter> four = out -> out.number("llama.rope.scaling.factor", 4);
    Consumer<GgufWriter> yarn = out -> out.text("llama.rope.scaling.type", "yarn");
    double[] both = rope(divided.andThen(four)).frequencies();
    for (int j = 0; j < plain.length; j++) {
      assertEquals(plain[j] / 4, rope(four).frequencies()[j], 1e-12);
      assertEquals(plain[j] / factors[j], rope(divided).frequencies()[j], 1e-12);
      assertEquals(plain[j] / factors[j] / 4, both[j], 1e-12);
      assertEquals(plain[j] / 2, rope(out -> out.number("llama.rope.scale_linear", 2)).frequencies()[j], 1e-12);
    }
    assertArrayEquals(plain, rope(out -> out.number("llama.rope.scaling.factor", 0)).frequencies());
    assertArrayEquals(plain, rope(four.andThen(out -> out.text("llama.rope.scaling.type", "none"))).frequencies());
    Consumer<GgufWriter> original = out -> out.integer("llama.rope.scaling.original_context_length", 1024);
    assertEquals(rope(four.andThen(yarn).andThen(original)), rope(four.andThen(yarn)));
    ModelException e = assertThrows(ModelException.class, () -> rope(divided.andThen(yarn)));
    assertTrue(e.getMessage().contains("rope_freqs"), e.getMessage());
  }

  private Rope rope(Consumer<GgufWriter> change) throws IOException {
    Path file = folder.resolve("rope.gguf");
    GgufWriter out = TinyModel.gguf(file, "llama", 6).gguf();
    change.accept(out);
    out.write(file);
    return Model.load(file).config().rope();
  }

  @Test
  void aFileThatIsNotThereIsNamed() {
    Path missing = folder.resolve("missing.gguf");
    assertEquals(
        missing.toString(), assertThrows(NoSuchFileException.class, () -> Gguf.open(missing)).getMessage());
  }
}
