package dev.kvasir.runner;

import dev.kvasir.KvGeometry;
import dev.kvasir.rope.Rope;
import dev.kvasir.runner.file.Gguf;
import dev.kvasir.runner.file.Json;
import dev.kvasir.runner.file.ModelException;
import dev.kvasir.runner.file.Weights;
import dev.kvasir.runner.text.Tokenizers;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;

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

  private static final List<String> TYPES = List.of("llama", "mistral", "qwen2", "qwen3");
  /** Mistral's are of "llama" there. */
  private static final List<String> GGUF_TYPES = List.of("llama", "qwen2", "qwen3");
  /** What Mistral's own class takes a configuration for that does not speak of a window. */
  private static final int MISTRAL_WINDOW = 4096;

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
      return of(Json.read(file), alsoEnds(folder.resolve("generation_config.json")), file);
    } catch (Json.JsonException e) {
      throw new ModelException(e.getMessage(), e);
    } catch (IllegalArgumentException e) {
      throw new ModelException(file + ": " + e.getMessage(), e);
    }
  }

  /** Tokens that end a text, of a file that may be missing: newer ones stand there alone. */
  private static List<Integer> alsoEnds(Path file) throws IOException {
    return Files.exists(file) ? tokens(Json.read(file).find("eos_token_id")) : List.of();
  }

  private static ModelConfig of(Json json, List<Integer> alsoEnds, Path file) throws ModelException {
    String type = json.get("model_type").text();
    requireType(TYPES, type, file + ": model_type");
    String activation = json.find("hidden_act").map(Json::text).orElse("silu");
    if (!activation.equals("silu")) {
      throw new ModelException(file + ": hidden_act is \"" + shown(activation) + "\"; silu can be run");
    }
    if (json.find("use_sliding_window").map(Json::flag).orElse(false)) {
      throw new ModelException(file + ": use_sliding_window is true, for some layers; all or none can be run");
    }
    if (json.find("quantization_config").isPresent()) {
      throw new ModelException(file + ": it has a quantization_config; weights that are plain floats can be run");
    }
    int hidden = positive(json, "hidden_size", file);
    int heads = positive(json, "num_attention_heads", file);
    int kvHeads = json.find("num_key_value_heads").isPresent() ? positive(json, "num_key_value_heads", file) : heads;
    if (heads % kvHeads != 0) {
      throw new ModelException(file + ": " + heads + " attention heads are no multiple of " + kvHeads + " kv heads");
    }
    int headDim = json.find("head_dim").isPresent() ? positive(json, "head_dim", file) : hidden / heads;
    int window = slidingWindow(json, type, file);
    requireLayers(json, window == 0 ? "full_attention" : "sliding_attention", file);
    List<Integer> ends = new ArrayList<>(tokens(json.find("eos_token_id")));
    alsoEnds.stream().filter(id -> !ends.contains(id)).forEach(ends::add);
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
        window,
        json.find("rms_norm_eps").map(Json::number).orElse(1e-6),
        json.find("tie_word_embeddings").map(Json::flag).orElse(false),
        RopeSettings.of(json, headDim, file),
        tokens(json.find("bos_token_id")).stream().mapToInt(Integer::intValue).findFirst(),
        ends);
  }

  /** Qwen's files name a window that use_sliding_window turns off; Mistral's has a default, so that null says none. */
  private static int slidingWindow(Json json, String type, Path file) throws ModelException {
    if (!type.equals("mistral")) {
      return 0;
    }
    if (!json.map().containsKey("sliding_window")) {
      return MISTRAL_WINDOW;
    }
    return json.find("sliding_window").isPresent() ? positive(json, "sliding_window", file) : 0;
  }

  private static void requireLayers(Json json, String kind, Path file) throws ModelException {
    for (Json layer : json.find("layer_types").map(Json::list).orElse(List.of())) {
      if (!layer.text().equals(kind)) {
        throw new ModelException(
            file + ": layer_types has \"" + shown(layer.text()) + "\"; layers that are all " + kind + " can be run");
      }
    }
  }

  /** Reads the metadata of a GGUF file. */
  static ModelConfig read(Gguf file) throws IOException {
    String type = file.text("general.architecture");
    requireType(GGUF_TYPES, type, file.path() + ": general.architecture");
    int hidden = positive(file, type + ".embedding_length");
    int heads = positive(file, type + ".attention.head_count");
    int kvHeads = file.findInteger(type + ".attention.head_count_kv").orElse(heads);
    int headDim = file.findInteger(type + ".attention.key_length").orElse(hidden / heads);
    OtherArithmetic.refuse(file, type, headDim);
    if (kvHeads < 1 || file.findInteger(type + ".attention.value_length").orElse(headDim) != headDim) {
      throw new ModelException(file.path() + ": " + kvHeads + " kv heads, or values that are not as long as keys");
    }
    Weights embedding = file.read("token_embd.weight");
    List<Integer> ends = new ArrayList<>();
    for (String end : List.of("eos", "eot", "eom")) { // of the text, the turn, the message
      file.findInteger("tokenizer.ggml." + end + "_token_id").filter(id -> !ends.contains(id)).ifPresent(ends::add);
    }
    Tokenizers.ends(file).stream().filter(id -> !ends.contains(id)).forEach(ends::add);
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
          file.number(type + ".attention.layer_norm_rms_epsilon"),
          !file.has("output.weight"),
          RopeSettings.of(file, type, headDim),
          bos.isPresent() ? OptionalInt.of(bos.get()) : OptionalInt.empty(),
          ends);
    } catch (IllegalArgumentException e) {
      throw new ModelException(file.path() + ": " + e.getMessage(), e);
    }
  }

  private static void requireType(List<String> known, String type, String what) throws ModelException {
    if (!known.contains(type)) {
      throw new ModelException(what + " is \"" + shown(type) + "\"; " + String.join(", ", known) + " can be run");
    }
  }

  /** A text of a file, as messages quote it. */
  static String shown(String text) {
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
