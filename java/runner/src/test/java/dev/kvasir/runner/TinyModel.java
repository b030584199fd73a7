package dev.kvasir.runner;

import dev.kvasir.runner.file.Json;
import dev.kvasir.tensor.Safetensors;
import dev.kvasir.tensor.Tensor;
import dev.kvasir.tensor.TensorType;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * A small random model, written as a folder in the layout of Hugging Face, and run by plain loops in double precision
 * that share nothing with the code under test.
 */
public final class TinyModel {

  public static final int HIDDEN = 64;
  public static final int HEADS = 4;
  public static final int KV_HEADS = 2;
  public static final int HEAD_DIM = 32;
  public static final int INTERMEDIATE = 96;
  public static final int LAYERS = 2;
  public static final int VOCABULARY = 260;
  public static final int BOS = 256;
  private static final double EPSILON = 1e-5;
  private static final double THETA = 10000;

  private final String type;
  private final boolean qwen;
  private final Map<String, double[]> weights = new LinkedHashMap<>();
  private final Map<String, Tensor> tensors = new LinkedHashMap<>();

  private int window = Integer.MAX_VALUE;

  private TinyModel(String name, Random random, TensorType type) {
    this(name, random, type, false);
  }

  /** {@code biased}: with a bias wherever a configuration can ask for one. */
  private TinyModel(String name, Random random, TensorType type, boolean biased) {
    this.type = name;
    this.qwen = name.equals("qwen2");
    add(random, type, "model.embed_tokens.weight", 1, VOCABULARY, HIDDEN);
    for (int i = 0; i < LAYERS; i++) {
      String layer = "model.layers." + i + ".";
      add(random, type, layer + "input_layernorm.weight", 1, HIDDEN);
      add(random, type, layer + "post_attention_layernorm.weight", 1, HIDDEN);
      project(random, type, layer + "self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN, qwen || biased);
      project(random, type, layer + "self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN, qwen || biased);
      project(random, type, layer + "self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN, qwen || biased);
      if (name.equals("qwen3")) {
        add(random, type, layer + "self_attn.q_norm.weight", 1, HEAD_DIM);
        add(random, type, layer + "self_attn.k_norm.weight", 1, HEAD_DIM);
      }
      project(random, type, layer + "self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, biased);
      project(random, type, layer + "mlp.gate_proj", INTERMEDIATE, HIDDEN, biased);
      project(random, type, layer + "mlp.up_proj", INTERMEDIATE, HIDDEN, biased);
      project(random, type, layer + "mlp.down_proj", HIDDEN, INTERMEDIATE, biased);
    }
    add(random, type, "model.norm.weight", 1, HIDDEN);
    if (!qwen) {
      project(random, type, "lm_head", VOCABULARY, HIDDEN, false);
    }
  }

  /** Qwen2, bfloat16, tied embeddings, biases, one file. */
  public static TinyModel qwen2(Path folder, long seed) throws IOException {
    TinyModel model = new TinyModel("qwen2", new Random(seed), TensorType.BF16);
    Safetensors.write(folder.resolve("model.safetensors"), Map.of(), model.tensors);
    model.writeConfig(folder, "\"tie_word_embeddings\": true, \"rope_theta\": 10000.0, \"use_sliding_window\": false");
    return model;
  }

  /** Qwen3, float32: norms of queries and keys. */
  public static TinyModel qwen3(Path folder, long seed) throws IOException {
    TinyModel model = new TinyModel("qwen3", new Random(seed), TensorType.F32);
    Safetensors.write(folder.resolve("model.safetensors"), Map.of(), model.tensors);
    model.writeConfig(folder, "\"tie_word_embeddings\": false, \"rope_theta\": 10000.0");
    return model;
  }

  /** Llama, float32, with a bias of every projection, as attention_bias and mlp_bias want it. */
  public static TinyModel biased(Path folder, long seed) throws IOException {
    TinyModel model = new TinyModel("llama", new Random(seed), TensorType.F32, true);
    Safetensors.write(folder.resolve("model.safetensors"), Map.of(), model.tensors);
    model.writeConfig(folder, "\"attention_bias\": true, \"mlp_bias\": true");
    return model;
  }

  /** Mistral, float32: no token sees more than so many, itself among them. */
  public static TinyModel mistral(Path folder, long seed, int window) throws IOException {
    TinyModel model = new TinyModel("mistral", new Random(seed), TensorType.F32);
    model.window = window;
    Safetensors.write(folder.resolve("model.safetensors"), Map.of(), model.tensors);
    model.writeConfig(folder, "\"sliding_window\": " + window);
    return model;
  }

  /** Llama, Qwen2 or Qwen3 as a GGUF file in float32, with a vocabulary of bytes. */
  public static TinyModel gguf(Path file, String type, long seed) throws IOException {
    TinyModel model = new TinyModel(type, new Random(seed), TensorType.F32);
    model.gguf().write(file);
    return model;
  }

  /** The same, to be changed before it is written. */
  public GgufWriter gguf() {
    GgufWriter out = new GgufWriter();
    out.text("general.architecture", type);
    out.integer(type + ".context_length", 1024);
    out.integer(type + ".embedding_length", HIDDEN);
    out.integer(type + ".block_count", LAYERS);
    out.integer(type + ".feed_forward_length", INTERMEDIATE);
    out.integer(type + ".attention.head_count", HEADS);
    out.integer(type + ".attention.head_count_kv", KV_HEADS);
    out.integer(type + ".attention.key_length", HEAD_DIM);
    out.number(type + ".attention.layer_norm_rms_epsilon", (float) EPSILON);
    out.number(type + ".rope.freq_base", (float) THETA);
    GgufWriter.bytes(out, VOCABULARY, BOS);
    tensors.forEach(
        (name, tensor) -> {
          boolean turned = type.equals("llama") && (name.contains("q_proj") || name.contains("k_proj"));
          float[] values = tensor.toFloats();
          int width = tensor.shape().size() == 1 ? 1 : (int) (long) tensor.shape().get(1);
          out.floats(ggufName(name), turned ? neighbours(values, width) : values, tensor.shape());
        });
    return out;
  }

  private static String ggufName(String name) {
    return name.replace("model.embed_tokens", "token_embd").replace("model.layers.", "blk.")
        .replace("model.norm", "output_norm").replace("lm_head", "output").replace("input_layernorm", "attn_norm")
        .replace("post_attention_layernorm", "ffn_norm").replace("self_attn.q_proj", "attn_q")
        .replace("self_attn.k_proj", "attn_k").replace("self_attn.v_proj", "attn_v")
        .replace("self_attn.q_norm", "attn_q_norm").replace("self_attn.k_norm", "attn_k_norm")
        .replace("self_attn.o_proj", "attn_output").replace("mlp.", "ffn_").replace("_proj", "");
  }

  /** Rows of each head re-ordered so that those that turn together are neighbours. */
  private static float[] neighbours(float[] rows, int width) {
    float[] out = new float[rows.length];
    for (int row = 0; row < rows.length / width; row++) {
      int channel = row % HEAD_DIM;
      int moved = channel < HEAD_DIM / 2 ? 2 * channel : 2 * (channel - HEAD_DIM / 2) + 1;
      System.arraycopy(rows, row * width, out, (row - channel + moved) * width, width);
    }
    return out;
  }

  /** Llama in float32 or float16, with an output projection of its own, in two shards. */
  public static TinyModel llama(Path folder, long seed, TensorType type) throws IOException {
    TinyModel model = new TinyModel("llama", new Random(seed), type);
    Map<String, Tensor> first = new LinkedHashMap<>();
    Map<String, Tensor> second = new LinkedHashMap<>();
    model.tensors.forEach((name, tensor) -> (name.contains("layers.1.") ? second : first).put(name, tensor));
    Map<String, Object> index = new LinkedHashMap<>();
    first.keySet().forEach(name -> index.put(name, "model-00001-of-00002.safetensors"));
    second.keySet().forEach(name -> index.put(name, "model-00002-of-00002.safetensors"));
    Safetensors.write(folder.resolve("model-00001-of-00002.safetensors"), Map.of(), first);
    Safetensors.write(folder.resolve("model-00002-of-00002.safetensors"), Map.of(), second);
    Files.writeString(folder.resolve("model.safetensors.index.json"), Json.write(Map.of("weight_map", index)));
    model.writeConfig(folder, "\"tie_word_embeddings\": false, \"rope_parameters\": {\"rope_theta\": 10000.0}");
    return model;
  }

  /** Logits after each token, by the definition of the architecture. */
  public double[][] logits(int... tokens) {
    double[][] x = new double[tokens.length][];
    for (int t = 0; t < tokens.length; t++) {
      x[t] = Arrays.copyOfRange(weights.get("model.embed_tokens.weight"), tokens[t] * HIDDEN, (tokens[t] + 1) * HIDDEN);
    }
    for (int i = 0; i < LAYERS; i++) {
      String layer = "model.layers." + i + ".";
      double[][] q = new double[tokens.length][];
      double[][] k = new double[tokens.length][];
      double[][] v = new double[tokens.length][];
      for (int t = 0; t < tokens.length; t++) {
        double[] normed = norm(x[t], layer + "input_layernorm");
        q[t] = rotated(headNorms(times(normed, layer + "self_attn.q_proj"), layer + "self_attn.q_norm"), t);
        k[t] = rotated(headNorms(times(normed, layer + "self_attn.k_proj"), layer + "self_attn.k_norm"), t);
        v[t] = times(normed, layer + "self_attn.v_proj");
      }
      for (int t = 0; t < tokens.length; t++) {
        plus(x[t], times(attention(q[t], k, v, Math.max(0, t - window + 1), t), layer + "self_attn.o_proj"));
        double[] normed = norm(x[t], layer + "post_attention_layernorm");
        double[] gate = times(normed, layer + "mlp.gate_proj");
        double[] up = times(normed, layer + "mlp.up_proj");
        for (int j = 0; j < INTERMEDIATE; j++) {
          up[j] *= gate[j] / (1 + Math.exp(-gate[j]));
        }
        plus(x[t], times(up, layer + "mlp.down_proj"));
      }
    }
    double[][] logits = new double[tokens.length][];
    for (int t = 0; t < tokens.length; t++) {
      logits[t] = times(norm(x[t], "model.norm"), qwen ? "model.embed_tokens" : "lm_head");
    }
    return logits;
  }

  private static double[] attention(double[] query, double[][] k, double[][] v, int first, int t) {
    double[] out = new double[HEADS * HEAD_DIM];
    for (int head = 0; head < HEADS; head++) {
      int from = head / (HEADS / KV_HEADS) * HEAD_DIM;
      double[] weights = new double[t + 1];
      double sum = 0;
      for (int s = first; s <= t; s++) {
        double product = 0;
        for (int j = 0; j < HEAD_DIM; j++) {
          product += query[head * HEAD_DIM + j] * k[s][from + j];
        }
        weights[s] = Math.exp(product / Math.sqrt(HEAD_DIM));
        sum += weights[s];
      }
      for (int s = first; s <= t; s++) {
        for (int j = 0; j < HEAD_DIM; j++) {
          out[head * HEAD_DIM + j] += weights[s] / sum * v[s][from + j];
        }
      }
    }
    return out;
  }

  private static double[] rotated(double[] x, int position) {
    double[] out = x.clone();
    for (int head = 0; head < x.length / HEAD_DIM; head++) {
      for (int j = 0; j < HEAD_DIM / 2; j++) {
        double angle = position / Math.pow(THETA, 2.0 * j / HEAD_DIM);
        int a = head * HEAD_DIM + j;
        int b = a + HEAD_DIM / 2;
        out[a] = x[a] * Math.cos(angle) - x[b] * Math.sin(angle);
        out[b] = x[a] * Math.sin(angle) + x[b] * Math.cos(angle);
      }
    }
    return out;
  }

  private double[] headNorms(double[] x, String name) {
    if (!weights.containsKey(name + ".weight")) {
      return x;
    }
    double[] out = new double[x.length];
    for (int head = 0; head < x.length; head += HEAD_DIM) {
      System.arraycopy(norm(Arrays.copyOfRange(x, head, head + HEAD_DIM), name), 0, out, head, HEAD_DIM);
    }
    return out;
  }

  private double[] norm(double[] x, String name) {
    double mean = Arrays.stream(x).map(e -> e * e).sum() / x.length;
    double[] weight = weights.get(name + ".weight");
    double[] out = new double[x.length];
    Arrays.setAll(out, i -> x[i] / Math.sqrt(mean + EPSILON) * weight[i]);
    return out;
  }

  private double[] times(double[] x, String name) {
    double[] weight = weights.get(name + ".weight");
    double[] bias = weights.get(name + ".bias");
    double[] out = new double[weight.length / x.length];
    for (int o = 0; o < out.length; o++) {
      out[o] = bias == null ? 0 : bias[o];
      for (int i = 0; i < x.length; i++) {
        out[o] += weight[o * x.length + i] * x[i];
      }
    }
    return out;
  }

  private static void plus(double[] x, double[] more) {
    for (int i = 0; i < x.length; i++) {
      x[i] += more[i];
    }
  }

  private void project(Random random, TensorType type, String name, int out, int in, boolean bias) {
    add(random, type, name + ".weight", 1.5 / Math.sqrt(in), out, in);
    if (bias) {
      add(random, type, name + ".bias", 0.5, out);
    }
  }

  /** A random tensor, in the file as rounded to its type, and for the reference as it then is. */
  private void add(Random random, TensorType type, String name, double scale, long... shape) {
    int count = (int) Arrays.stream(shape).reduce(1, (a, b) -> a * b);
    ByteBuffer bytes = ByteBuffer.allocate(count * type.bytes()).order(ByteOrder.LITTLE_ENDIAN);
    for (int i = 0; i < count; i++) {
      float x = (float) (scale * random.nextGaussian());
      if (type == TensorType.F32) {
        bytes.putFloat(x);
      } else if (type == TensorType.BF16) {
        bytes.putShort((short) (Float.floatToIntBits(x) >> 16));
      } else {
        // Normal float16 numbers: the exponent's bias is 15 instead of 127, and 10 bits of the fraction stay.
        int bits = Float.floatToIntBits(Math.max(Math.abs(x), 0x1p-14f));
        bytes.putShort((short) ((x < 0 ? 0x8000 : 0) | (bits >> 13) - (112 << 10)));
      }
    }
    Tensor tensor = Tensor.ofBytes(type, bytes.array(), shape);
    tensors.put(name, tensor);
    weights.put(name, tensor.toDoubles());
  }

  private void writeConfig(Path folder, String more) throws IOException {
    List<String> lines =
        List.of(
            "\"model_type\": \"" + type + "\"",
            "\"vocab_size\": " + VOCABULARY,
            "\"hidden_size\": " + HIDDEN,
            "\"intermediate_size\": " + INTERMEDIATE,
            "\"num_hidden_layers\": " + LAYERS,
            "\"num_attention_heads\": " + HEADS,
            "\"num_key_value_heads\": " + KV_HEADS,
            "\"head_dim\": " + HEAD_DIM,
            "\"hidden_act\": \"silu\"",
            "\"max_position_embeddings\": 1024",
            "\"rms_norm_eps\": 1e-5",
            "\"bos_token_id\": " + BOS,
            "\"eos_token_id\": [257, 258]",
            more);
    Files.writeString(folder.resolve("config.json"), "{" + String.join(", ", lines) + "}");
  }

  /** Random tensors in the place of recorded keys, values and their gradients. */
  public static void writeGradients(Path file) throws IOException {
    Map<String, Tensor> tensors = new LinkedHashMap<>();
    Random random = new Random(2);
    for (int layer = 0; layer < LAYERS; layer++) {
      for (String name : List.of("layers.%d.k", "layers.%d.v", "layers.%d.grad_k", "layers.%d.grad_v")) {
        float[] values = new float[KV_HEADS * 128 * HEAD_DIM];
        for (int i = 0; i < values.length; i++) {
          values[i] = (float) random.nextGaussian();
        }
        tensors.put(String.format(name, layer), Tensor.ofFloats(values, KV_HEADS, 128, HEAD_DIM));
      }
    }
    Safetensors.write(file, Map.of(), tensors);
  }
}
