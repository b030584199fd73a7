package dev.kvasir.runner;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.rope.Rope;
import dev.kvasir.runner.file.ModelException;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.Tensor;
import dev.kvasir.tensor.TensorType;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Whatever a model's files say that changes its arithmetic is done or refused by name: no model runs as another. */
class OtherArithmeticTest {

  @TempDir Path folder;

  private Model gguf(String type, Consumer<GgufWriter> change) throws IOException {
    Path file = folder.resolve("model.gguf");
    GgufWriter out = TinyModel.gguf(file, type, 31).gguf();
    change.accept(out);
    out.write(file);
    return Model.load(file, true);
  }

  private void assertRefused(String named, String type, Consumer<GgufWriter> change) {
    ModelException e = assertThrows(ModelException.class, () -> gguf(type, change), named);
    assertTrue(e.getMessage().contains(named), e.getMessage());
  }

  @Test
  void metadataOfOtherArithmeticsIsRefused() throws Exception {
    Map<String, List<Float>> numbers = new LinkedHashMap<>();
    for (String cap :
        List.of(
            "attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv", "attention.max_alibi_bias",
            "attention.temperature_scale", "rope.scaling.yarn_log_multiplier", "rope.scaling.alpha")) {
      numbers.put(cap, List.of(0.5f, 0f));
    }
    for (String scale :
        List.of(
            "logit_scale", "embedding_scale", "residual_scale", "attention.output_scale", "attention.value_scale")) {
      numbers.put(scale, List.of(0.5f, 1f, 0f));
    }
    numbers.put("attention.scale", List.of(0.5f, 0f, (float) (1 / Math.sqrt(TinyModel.HEAD_DIM))));
    numbers.put("rope.scaling.yarn_attn_factor", List.of(0.5f, 1f));
    numbers.put("rope.scaling.yarn_ext_factor", List.of(0.5f, -1f));
    for (Map.Entry<String, List<Float>> each : numbers.entrySet()) {
      String key = "llama." + each.getKey();
      float other = each.getValue().get(0);
      assertRefused(key, "llama", out -> out.number(key, other));
      for (float neutral : each.getValue().subList(1, each.getValue().size())) {
        gguf("llama", out -> out.number(key, neutral));
      }
    }
    for (String count : List.of("nextn_predict_layers", "attention.shared_kv_layers", "expert_count")) {
      assertRefused(count, "qwen3", out -> out.integer("qwen3." + count, 2));
      gguf("qwen3", out -> out.integer("qwen3." + count, 0));
    }
    assertRefused("attention.causal", "qwen2", out -> out.flag("qwen2.attention.causal", false));
    gguf("qwen2", out -> out.flag("qwen2.attention.causal", true));
    assertRefused("use_parallel_residual", "qwen2", out -> out.flag("qwen2.use_parallel_residual", true));
    gguf("qwen2", out -> out.flag("qwen2.use_parallel_residual", false));
    for (String there : List.of("attention.sliding_window_pattern", "rope.dimension_sections")) {
      assertRefused(there, "llama", out -> out.integers("llama." + there, 1, 0));
    }
    assertRefused("rope.freq_base_swa", "llama", out -> out.number("llama.rope.freq_base_swa", 10000));
  }

  /** As in llama.cpp, where it comes on top of YaRN's own; DeepSeek R1 0528's of Qwen3 makes 1 of both. */
  @Test
  void attentionFactorsMultiplyTurnedQueriesAndKeys() throws Exception {
    double own = 0.1 * Math.log(4) + 1;
    Consumer<GgufWriter> yarn =
        out -> {
          out.text("qwen3.rope.scaling.type", "yarn");
          out.number("qwen3.rope.scaling.factor", 4);
          out.integer("qwen3.rope.scaling.original_context_length", 64);
        };
    Rope turned = gguf("qwen3", yarn).config().rope();
    assertEquals(own, turned.attentionFactor(), 1e-12);
    String key = "qwen3.rope.scaling.attn_factor";
    Rope less = gguf("qwen3", yarn.andThen(out -> out.number(key, 0.8782488562869419f))).config().rope();
    assertEquals(1, less.attentionFactor(), 1e-6);
    assertArrayEquals(turned.frequencies(), less.frequencies());
    for (String type : List.of("none", "linear")) {
      Consumer<GgufWriter> scaled = out -> out.text("llama.rope.scaling.type", type);
      Model model = gguf("llama", scaled.andThen(out -> out.number("llama.rope.scaling.attn_factor", 0.5f)));
      assertEquals(0.5, model.config().rope().attentionFactor(), type);
    }
    for (float wrong : new float[] {0, -1, Float.NaN, Float.POSITIVE_INFINITY}) {
      assertRefused(key + " is " + (double) wrong, "qwen3", out -> out.number(key, wrong));
    }
    // What is in YaRN's own key has two meanings.
    String other = "qwen3.rope.scaling.yarn_attn_factor";
    for (float unclear : new float[] {0.8782488562869419f, 1, Float.NaN}) {
      assertRefused(other + " is " + (double) unclear, "qwen3", yarn.andThen(out -> out.number(other, unclear)));
    }
    assertEquals(turned, gguf("qwen3", yarn.andThen(out -> out.number(other, (float) own))).config().rope());
  }

  @Test
  void attentionFactorsOfFoldersStandInPlaceOfYarns() throws Exception {
    TinyModel.qwen3(folder, 33);
    String before = "\"rope_theta\": 10000.0";
    String yarn = "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 64%s}";
    changeConfig(before, String.format(yarn, ""));
    Rope turned = Model.load(folder).config().rope();
    assertEquals(0.1 * Math.log(4) + 1, turned.attentionFactor(), 1e-12);
    changeConfig(String.format(yarn, ""), String.format(yarn, ", \"attention_factor\": 1.5"));
    assertEquals(turned.attentionFactor(1.5), Model.load(folder).config().rope());
    changeConfig("1.5", "-1.0");
    ModelException e = assertThrows(ModelException.class, () -> Model.load(folder));
    assertTrue(e.getMessage().contains("an attention factor of -1.0"), e.getMessage());
    changeConfig("\"attention_factor\": -1.0", "\"mscale\": 1.0");
    assertThrows(ModelException.class, () -> Model.load(folder));
  }

  /** No converter writes it, so which channels its rows turn together is not known. */
  @Test
  void mistralIsNoArchitectureOfGguf() {
    assertRefused("\"mistral\"", "mistral", out -> {});
  }

  /** Models differ in it, so there is none to be assumed. */
  @Test
  void theEpsilonOfNormsIsNotGuessed() {
    String key = "llama.attention.layer_norm_rms_epsilon";
    assertRefused(key, "llama", out -> out.remove(key));
  }

  @Test
  void tensorsOfOtherArithmeticsAreRefused() throws Exception {
    Map<String, List<Long>> more =
        Map.of(
            "blk.0.attn_sinks.weight", List.of(4L), "blk.1.post_attention_norm.weight", List.of(64L),
            "blk.0.attn_norm.bias", List.of(64L), "blk.0.attn_q_norm.weight", List.of(32L),
            "blk.2.attn_norm.weight", List.of(64L), "output.bias", List.of(260L), "output_norm.bias", List.of(64L),
            "token_embd_norm.weight", List.of(64L));
    more.forEach(
        (name, shape) ->
            assertRefused(
                name, "llama", out -> out.floats(name, new float[(int) (long) shape.get(0)], shape)));
    for (String norm : List.of("blk.0.attn_q_norm.weight", "blk.1.attn_k_norm.weight")) {
      assertRefused(norm, "qwen3", out -> out.remove(norm));
    }
  }

  @Test
  void tensorsOfOtherArithmeticsAreRefusedInFoldersToo() throws Exception {
    TinyModel.qwen2(folder, 32);
    Path file = folder.resolve("model.safetensors");
    Map<String, Tensor> tensors = new LinkedHashMap<>();
    try (Safetensors opened = Safetensors.open(file)) {
      for (String name : opened.entries().keySet()) {
        tensors.put(name, opened.read(name));
      }
    }
    Tensor small = Tensor.ofFloats(new float[] {1, 2}, 2);
    for (String name :
        List.of(
            "model.layers.0.self_attn.sinks", "model.layers.1.input_layernorm.bias",
            "model.layers.0.self_attn.q_norm.weight", "model.embed_norm.weight", "lm_head.bias")) {
      Map<String, Tensor> more = new LinkedHashMap<>(tensors);
      more.put(name, small);
      Safetensors.write(file, Map.of(), more);
      ModelException e = assertThrows(ModelException.class, () -> Model.load(folder), name);
      assertTrue(e.getMessage().contains(name), e.getMessage());
    }
    // Frequencies that follow from the configuration, a head that is the embedding, heads for other purposes.
    for (String name : List.of("model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight", "score.weight")) {
      tensors.put(name, small);
    }
    Safetensors.write(file, Map.of(), tensors);
    Model.load(folder);
  }

  @Test
  void configurationsOfOtherArithmeticsAreRefused() throws Exception {
    TinyModel.llama(folder, 33, TensorType.F32);
    String[][] cases = {
      {"\"partial_rotary_factor\": 0.5", "partial_rotary_factor"},
      {"\"rope_scaling\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}", "partial_rotary_factor"},
      {"\"rope_scaling\": {\"factor\": 4.0}", "rope_type"},
      {"\"rope_scaling\": {\"full_attention\": {\"rope_theta\": 1e6}}", "full_attention"},
      {"\"layer_types\": [\"full_attention\", \"sliding_attention\"]", "sliding_attention"},
      {"\"quantization_config\": {\"quant_method\": \"bitnet\"}", "quantization_config"},
    };
    for (String[] wrong : cases) {
      changeConfig("\"rope_parameters\": {\"rope_theta\": 10000.0}", wrong[0]);
      ModelException e = assertThrows(ModelException.class, () -> Model.load(folder), wrong[0]);
      assertTrue(e.getMessage().contains(wrong[1]), e.getMessage());
      changeConfig(wrong[0], "\"rope_parameters\": {\"rope_theta\": 10000.0}");
    }
    changeConfig("{", "{\"layer_types\": [\"full_attention\", \"full_attention\"], \"partial_rotary_factor\": 1.0, ");
    Model.load(folder);
  }

  /** Mistral's own class takes a file that says nothing of a window for one of 4096 tokens. */
  @Test
  void mistralHasAWindowUnlessItsFileSaysNone() throws Exception {
    TinyModel.llama(folder, 34, TensorType.F32);
    changeConfig("\"llama\"", "\"mistral\"");
    assertEquals(4096, Model.load(folder).config().slidingWindow());
    changeConfig("{", "{\"sliding_window\": null, ");
    assertEquals(0, Model.load(folder).config().slidingWindow());
    changeConfig("null", "512");
    assertEquals(512, Model.load(folder).config().slidingWindow());
  }

  @Test
  void tokensThatEndATextStandInTwoFiles() throws Exception {
    TinyModel.llama(folder, 35, TensorType.F32);
    assertEquals(List.of(257, 258), Model.load(folder).config().ends());
    Path generation = folder.resolve("generation_config.json");
    Files.writeString(generation, "{\"eos_token_id\": [258, 259]}");
    assertEquals(List.of(257, 258, 259), Model.load(folder).config().ends());
    Files.writeString(generation, "{\"eos_token_id\": \"x\"}");
    ModelException e = assertThrows(ModelException.class, () -> Model.load(folder));
    assertTrue(e.getMessage().contains("generation_config.json"), e.getMessage());
    assertEquals(
        List.of(257, 10, 11),
        gguf(
                "llama",
                out -> {
                  out.integer("tokenizer.ggml.eot_token_id", 10);
                  out.integer("tokenizer.ggml.eom_token_id", 11);
                })
            .config()
            .ends());
    List<String> tokens = new ArrayList<>();
    for (int i = 0; i < TinyModel.VOCABULARY; i++) {
      tokens.add(i < 256 ? String.format("<0x%02X>", i) : i == 259 ? "<|endoftext|>" : "<special " + i + ">");
    }
    assertEquals(
        List.of(257, 259), gguf("qwen2", out -> out.texts("tokenizer.ggml.tokens", tokens)).config().ends());
  }

  private void changeConfig(String from, String to) throws IOException {
    Path config = folder.resolve("config.json");
    String text = Files.readString(config);
    assertTrue(text.contains(from), from);
    Files.writeString(config, text.replace(from, to));
  }
}
