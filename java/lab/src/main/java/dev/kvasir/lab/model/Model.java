package dev.kvasir.lab.model;

import dev.kvasir.KvGeometry;
import dev.kvasir.tensor.SafetensorsException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * The weights of a Llama or Qwen2 model from a folder in the layout of Hugging Face: {@code config.json}, safetensors,
 * {@code tokenizer.json}. A {@link Decoder} runs it; the weights may be shared by several.
 */
public final class Model {

  /** One decoder layer. */
  record Layer(float[] attentionNorm, Linear qkv, Linear output, float[] feedNorm, Linear gateUp, Linear down) {}

  private final ModelConfig config;
  private final KvGeometry geometry;
  private final Tokenizer tokenizer;
  private final Linear embedding;
  private final List<Layer> layers;
  private final float[] finalNorm;
  private final Linear head;

  private Model(
      ModelConfig config,
      Tokenizer tokenizer,
      Linear embedding,
      List<Layer> layers,
      float[] finalNorm,
      Linear head) {
    this.config = config;
    this.geometry = config.geometry();
    this.tokenizer = tokenizer;
    this.embedding = embedding;
    this.layers = layers;
    this.finalNorm = finalNorm;
    this.head = head;
  }

  /**
   * Reads a model.
   *
   * @throws ModelException if the model is none that can be run, or a tensor is missing or misshapen
   * @throws IOException if a file cannot be read
   */
  public static Model load(Path folder) throws IOException {
    ModelConfig config = ModelConfig.read(folder);
    Tokenizer tokenizer = Tokenizer.load(folder, config);
    try (SafetensorsModel file = SafetensorsModel.open(folder)) {
      int hidden = config.hidden();
      Linear embedding = Linear.read(file, hidden, new Linear.Part("model.embed_tokens", config.vocabulary()));
      List<Layer> layers = new ArrayList<>();
      for (int i = 0; i < config.layers(); i++) {
        layers.add(layer(file, config, "model.layers." + i + "."));
      }
      float[] finalNorm = Linear.vector(file, "model.norm.weight", hidden);
      Linear head =
          config.tiedEmbeddings()
              ? embedding
              : Linear.read(file, hidden, new Linear.Part("lm_head", config.vocabulary()));
      return new Model(config, tokenizer, embedding, layers, finalNorm, head);
    } catch (SafetensorsException e) {
      throw new ModelException(folder + ": " + e.getMessage(), e);
    }
  }

  private static Layer layer(SafetensorsModel file, ModelConfig config, String name) throws IOException {
    int hidden = config.hidden();
    int queries = config.queryHeads() * config.headDim();
    int rows = config.kvHeads() * config.headDim();
    return new Layer(
        Linear.vector(file, name + "input_layernorm.weight", hidden),
        Linear.read(
            file,
            hidden,
            new Linear.Part(name + "self_attn.q_proj", queries),
            new Linear.Part(name + "self_attn.k_proj", rows),
            new Linear.Part(name + "self_attn.v_proj", rows)),
        Linear.read(file, queries, new Linear.Part(name + "self_attn.o_proj", hidden)),
        Linear.vector(file, name + "post_attention_layernorm.weight", hidden),
        Linear.read(
            file,
            hidden,
            new Linear.Part(name + "mlp.gate_proj", config.intermediate()),
            new Linear.Part(name + "mlp.up_proj", config.intermediate())),
        Linear.read(file, config.intermediate(), new Linear.Part(name + "mlp.down_proj", hidden)));
  }

  /** What config.json says. */
  public ModelConfig config() {
    return config;
  }

  /** The shape of caches for this model. */
  public KvGeometry geometry() {
    return geometry;
  }

  /** Its tokens. */
  public Tokenizer tokenizer() {
    return tokenizer;
  }

  /** Weights, embeddings included; tied ones once. */
  public long parameters() {
    long sum = embedding.weights() + finalNorm.length + (head == embedding ? 0 : head.weights());
    for (Layer layer : layers) {
      sum += layer.attentionNorm().length + layer.feedNorm().length + layer.qkv().weights() + layer.output().weights();
      sum += layer.gateUp().weights() + layer.down().weights();
    }
    return sum;
  }

  Linear embedding() {
    return embedding;
  }

  List<Layer> layers() {
    return layers;
  }

  float[] finalNorm() {
    return finalNorm;
  }

  Linear head() {
    return head;
  }
}
