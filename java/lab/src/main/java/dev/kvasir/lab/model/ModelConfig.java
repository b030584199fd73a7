package dev.kvasir.lab.model;

import dev.kvasir.KvGeometry;
import dev.kvasir.lab.Json;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;

/**
 * What {@code config.json} says of a model, as far as it matters here.
 *
 * @param type "llama" or "qwen2"
 * @param vocabulary tokens
 * @param hidden width of the residual stream
 * @param intermediate width of the feed-forward layers
 * @param layers decoder layers
 * @param queryHeads query heads of a layer
 * @param kvHeads key and value heads of a layer
 * @param headDim channels of a head
 * @param maxPositions tokens that the model was made for
 * @param normEpsilon added to mean squares
 * @param tiedEmbeddings whether the output projection is the embedding
 * @param rope angles of the rotary embedding
 * @param bos token that begins a text, if the model has one
 * @param eos token that ends a text, if the model has one
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
    double normEpsilon,
    boolean tiedEmbeddings,
    Rope rope,
    OptionalInt bos,
    OptionalInt eos) {

  private static final Set<String> TYPES = Set.of("llama", "qwen2");

  /** Reads {@code config.json} of a folder. */
  public static ModelConfig read(Path folder) throws IOException {
    Path file = folder.resolve("config.json");
    try {
      return of(Json.read(file), file);
    } catch (Json.JsonException e) {
      throw new ModelException(e.getMessage(), e);
    } catch (IllegalArgumentException e) {
      throw new ModelException(file + ": " + e.getMessage(), e); // numbers that no cache or RoPE could have
    }
  }

  /** The shape of a cache for this model. */
  public KvGeometry geometry() {
    return KvGeometry.builder().layers(layers).queryHeads(queryHeads).kvHeads(kvHeads).headDim(headDim).build();
  }

  private static ModelConfig of(Json json, Path file) throws ModelException {
    String type = json.get("model_type").text();
    if (!TYPES.contains(type)) {
      throw new ModelException(file + ": model_type is \"" + shown(type) + "\"; llama and qwen2 can be run");
    }
    String activation = json.find("hidden_act").map(Json::text).orElse("silu");
    if (!activation.equals("silu")) {
      throw new ModelException(file + ": hidden_act is \"" + shown(activation) + "\"; silu can be run");
    }
    if (json.find("use_sliding_window").map(Json::flag).orElse(false)) {
      throw new ModelException(file + ": use_sliding_window is true; full attention can be run");
    }
    int hidden = positive(json, "hidden_size", file);
    int heads = positive(json, "num_attention_heads", file);
    int kvHeads = json.find("num_key_value_heads").isPresent() ? positive(json, "num_key_value_heads", file) : heads;
    if (heads % kvHeads != 0) {
      throw new ModelException(file + ": " + heads + " attention heads are no multiple of " + kvHeads + " kv heads");
    }
    int headDim = json.find("head_dim").isPresent() ? positive(json, "head_dim", file) : hidden / heads;
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
        json.find("rms_norm_eps").map(Json::number).orElse(1e-6),
        json.find("tie_word_embeddings").map(Json::flag).orElse(false),
        Rope.of(json, headDim, file),
        token(json.find("bos_token_id")),
        token(json.find("eos_token_id")));
  }

  /** Some models list several ends; the first is as good as any. */
  private static OptionalInt token(Optional<Json> id) {
    return id.flatMap(found -> found.isList() ? found.list().stream().findFirst() : Optional.of(found))
        .map(found -> OptionalInt.of(found.integer()))
        .orElse(OptionalInt.empty());
  }

  private static String shown(String text) {
    return dev.kvasir.internal.json.Json.abbreviate(text);
  }

  private static int positive(Json json, String name, Path file) throws ModelException {
    int value = json.get(name).integer();
    if (value <= 0) {
      throw new ModelException(file + ": " + name + " is " + value);
    }
    return value;
  }
}
