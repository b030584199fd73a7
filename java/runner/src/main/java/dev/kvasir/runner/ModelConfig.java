package dev.kvasir.runner;

import dev.kvasir.KvGeometry;
import dev.kvasir.rope.Rope;
import dev.kvasir.runner.file.Gguf;
import dev.kvasir.runner.file.Json;
import dev.kvasir.runner.file.ModelException;
import dev.kvasir.runner.file.Weights;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;

/**
 * What a model's files say of it, as far as it matters here.
 *
 * @param type "llama", "mistral", "qwen2" or "qwen3"
 * @param vocabulary tokens
 * @param hidden width of the residual stream
 * @param intermediate width of the feed-forward layers
 * @param layers decoder layers
 * @param queryHeads query heads of a layer
 * @param kvHeads key and value heads of a layer
 * @param headDim channels of a head
 * @param maxPositions tokens that the model was made for
 * @param slidingWindow tokens that a layer sees, 0 for all
 * @param normEpsilon added to mean squares
 * @param tiedEmbeddings whether the output projection is the embedding
 * @param rope the rotary embedding
 * @param bos token that begins a text, if the model has one
 * @param ends tokens that end a text
 */
public record ModelConfig(
    String type,
    int vocabulary,
    int hidden,
    int intermediate,
    int layers,
    int queryHeads,
    int kvHeads,
    int headDim,
    int maxPositions,
    long slidingWindow,
    double normEpsilon,
    boolean tiedEmbeddings,
    Rope rope,
    OptionalInt bos,
    List<Integer> ends) {

  private static final Set<String> TYPES = Set.of("llama", "mistral", "qwen2", "qwen3");

  /** Checks that there can be a cache of this shape, and a text in it. */
  public ModelConfig {
    ends = List.copyOf(ends);
    if (!Double.isFinite(normEpsilon) || normEpsilon < 0) {
      throw new IllegalArgumentException("the epsilon of norms is " + normEpsilon);
    }
    if (maxPositions < 1) {
      throw new IllegalArgumentException("the model was made for " + maxPositions + " positions");
    }
    geometry(layers, queryHeads, kvHeads, headDim, slidingWindow);
  }

  /** The shape of a cache for this model. */
  public KvGeometry geometry() {
    return geometry(layers, queryHeads, kvHeads, headDim, slidingWindow);
  }

  private static KvGeometry geometry(int layers, int queryHeads, int kvHeads, int headDim, long slidingWindow) {
    KvGeometry.Builder builder =
        KvGeometry.builder().layers(layers).queryHeads(queryHeads).kvHeads(kvHeads).headDim(headDim);
    return (slidingWindow != 0 ? builder.slidingWindow(slidingWindow) : builder).build();
  }

  /** Reads {@code config.json} of a folder. */
  static ModelConfig read(Path folder) throws IOException {
    Path file = folder.resolve("config.json");
    try {
      return of(Json.read(file), file);
    } catch (Json.JsonException e) {
      throw new ModelException(e.getMessage(), e);
    } catch (IllegalArgumentException e) {
      throw new ModelException(file + ": " + e.getMessage(), e);
    }
  }

  private static ModelConfig of(Json json, Path file) throws ModelException {
    String type = json.get("model_type").text();
    requireType(type, file + ": model_type");
    String activation = json.find("hidden_act").map(Json::text).orElse("silu");
    if (!activation.equals("silu")) {
      throw new ModelException(file + ": hidden_act is \"" + shown(activation) + "\"; silu can be run");
    }
    if (json.find("use_sliding_window").map(Json::flag).orElse(false)) {
      throw new ModelException(file + ": use_sliding_window is true, for some layers; all or none can be run");
    }
    int hidden = positive(json, "hidden_size", file);
    int heads = positive(json, "num_attention_heads", file);
    int kvHeads = json.find("num_key_value_heads").isPresent() ? positive(json, "num_key_value_heads", file) : heads;
    if (heads % kvHeads != 0) {
      throw new ModelException(file + ": " + heads + " attention heads are no multiple of " + kvHeads + " kv heads");
    }
    int headDim = json.find("head_dim").isPresent() ? positive(json, "head_dim", file) : hidden / heads;
    // Qwen's files name a window that use_sliding_window turns off.
    boolean windowed = type.equals("mistral") && json.find("sliding_window").isPresent();
    return new ModelConfig(
        type,
        positive(json, "vocab_size", file),
        hidden,
        positive(json, "intermediate_size", file),
        positive(json, "num_hidden_layers", file),
        heads,
        kvHeads,
        headDim,
        json.find("max_position_embeddings").map(Json::integer).orElse(4096),
        windowed ? positive(json, "sliding_window", file) : 0,
        json.find("rms_norm_eps").map(Json::number).orElse(1e-6),
        json.find("tie_word_embeddings").map(Json::flag).orElse(false),
        RopeSettings.of(json, headDim, file),
        tokens(json.find("bos_token_id")).stream().mapToInt(Integer::intValue).findFirst(),
        tokens(json.find("eos_token_id")));
  }

  /** Reads the metadata of a GGUF file. */
  static ModelConfig read(Gguf file) throws IOException {
    String type = file.text("general.architecture");
    requireType(type, file.path() + ": general.architecture");
    int hidden = positive(file, type + ".embedding_length");
    int heads = positive(file, type + ".attention.head_count");
    int kvHeads = file.findInteger(type + ".attention.head_count_kv").orElse(heads);
    int headDim = file.findInteger(type + ".attention.key_length").orElse(hidden / heads);
    if (file.findInteger(type + ".expert_count").orElse(0) > 0) {
      throw new ModelException(file.path() + ": a mixture of experts; dense models can be run");
    }
    if (kvHeads < 1 || file.findInteger(type + ".attention.value_length").orElse(headDim) != headDim) {
      throw new ModelException(file.path() + ": " + kvHeads + " kv heads, or values that are not as long as keys");
    }
    Weights embedding = file.read("token_embd.weight");
    List<Integer> ends = new ArrayList<>();
    file.findInteger("tokenizer.ggml.eos_token_id").ifPresent(ends::add);
    file.findInteger("tokenizer.ggml.eot_token_id").filter(id -> !ends.contains(id)).ifPresent(ends::add);
    Optional<Integer> bos = file.findInteger("tokenizer.ggml.bos_token_id");
    try {
      return new ModelConfig(
          type,
          embedding.rows(),
          hidden,
          positive(file, type + ".feed_forward_length"),
          positive(file, type + ".block_count"),
          heads,
          kvHeads,
          headDim,
          positive(file, type + ".context_length"),
          file.findInteger(type + ".attention.sliding_window").orElse(0),
          file.findNumber(type + ".attention.layer_norm_rms_epsilon").orElse(1e-6),
          !file.has("output.weight"),
          RopeSettings.of(file, type, headDim),
          bos.isPresent() ? OptionalInt.of(bos.get()) : OptionalInt.empty(),
          ends);
    } catch (IllegalArgumentException e) {
      throw new ModelException(file.path() + ": " + e.getMessage(), e);
    }
  }

  private static void requireType(String type, String what) throws ModelException {
    if (!TYPES.contains(type)) {
      throw new ModelException(what + " is \"" + shown(type) + "\"; llama, mistral, qwen2 and qwen3 can be run");
    }
  }

  private static String shown(String text) {
    return dev.kvasir.internal.json.Json.abbreviate(text);
  }

  private static List<Integer> tokens(Optional<Json> id) {
    return id.map(found -> found.isList() ? found.list() : List.of(found))
        .map(found -> found.stream().map(Json::integer).toList())
        .orElse(List.of());
  }

  private static int positive(Json json, String name, Path file) throws ModelException {
    int value = json.get(name).integer();
    if (value <= 0) {
      throw new ModelException(file + ": " + name + " is " + value);
    }
    return value;
  }

  private static int positive(Gguf file, String name) throws ModelException {
    int value = file.integer(name);
    if (value <= 0) {
      throw new ModelException(file.path() + ": " + name + " is " + value);
    }
    return value;
  }
}
