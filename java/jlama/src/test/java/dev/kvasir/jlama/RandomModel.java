package dev.kvasir.jlama;

import com.github.tjake.jlama.model.AbstractModel;
import dev.kvasir.jlama.trial.SmallModel;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.Tensor;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;

/** Models of two layers and random weights, of the kinds of Jlama whose attention differs. */
final class RandomModel {

  private static final int WIDTH = 128;
  private static final int HIDDEN = 256;

  private final Random random = new Random(5);
  private final Map<String, Tensor> tensors = new LinkedHashMap<>();

  private RandomModel() {}

  /** Llama with as many kv heads as query heads. */
  static AbstractModel llama(Path folder) throws IOException {
    RandomModel model = new RandomModel();
    model.add(4, 4, 32, false);
    return model.load(folder, "llama", "LlamaForCausalLM", 4, "silu", "");
  }

  /** Gemma 2: logits under a cap, two more norms. */
  static AbstractModel gemma2(Path folder) throws IOException {
    RandomModel model = new RandomModel();
    model.add(4, 2, 32, true);
    return model.load(
        folder,
        "gemma2",
        "Gemma2ForCausalLM",
        2,
        "gelu_pytorch_tanh",
        ", \"head_dim\": 32, \"attn_logit_softcapping\": 0.5, \"final_logit_softcapping\": 30.0");
  }

  private void add(int heads, int kvHeads, int headDim, boolean moreNorms) {
    matrix("model.embed_tokens.weight", 264, WIDTH, 1);
    for (int layer = 0; layer < 2; layer++) {
      String base = "model.layers." + layer + ".";
      matrix(base + "self_attn.q_proj.weight", heads * headDim, WIDTH, 0.2);
      matrix(base + "self_attn.k_proj.weight", kvHeads * headDim, WIDTH, 0.2);
      matrix(base + "self_attn.v_proj.weight", kvHeads * headDim, WIDTH, 0.2);
      matrix(base + "self_attn.o_proj.weight", WIDTH, heads * headDim, 0.1);
      matrix(base + "mlp.gate_proj.weight", HIDDEN, WIDTH, 0.1);
      matrix(base + "mlp.up_proj.weight", HIDDEN, WIDTH, 0.1);
      matrix(base + "mlp.down_proj.weight", WIDTH, HIDDEN, 0.1);
      norm(base + "input_layernorm.weight");
      norm(base + "post_attention_layernorm.weight");
      if (moreNorms) {
        norm(base + "pre_feedforward_layernorm.weight");
        norm(base + "post_feedforward_layernorm.weight");
      }
    }
    norm("model.norm.weight");
  }

  private AbstractModel load(Path folder, String type, String architecture, int kvHeads, String activation, String more)
      throws IOException {
    SmallModel.write(folder);
    Files.writeString(
        folder.resolve("config.json"),
        String.format(
            "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"vocab_size\": 264, \"hidden_size\": %d,"
                + " \"intermediate_size\": %d, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
                + " \"num_key_value_heads\": %d, \"hidden_act\": \"%s\", \"max_position_embeddings\": 512,"
                + " \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"bos_token_id\": 256, \"eos_token_id\": 257%s}",
            architecture, type, WIDTH, HIDDEN, kvHeads, activation, more));
    Safetensors.write(folder.resolve("model.safetensors"), Map.of("format", "pt"), tensors);
    return SmallModel.load(folder);
  }

  private void matrix(String name, int rows, int columns, double scale) {
    float[] numbers = new float[rows * columns];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] = (float) (scale * random.nextGaussian());
    }
    tensors.put(name, Tensor.ofFloats(numbers, rows, columns));
  }

  private void norm(String name) {
    float[] ones = new float[WIDTH];
    Arrays.fill(ones, 1);
    tensors.put(name, Tensor.ofFloats(ones, WIDTH));
  }
}
