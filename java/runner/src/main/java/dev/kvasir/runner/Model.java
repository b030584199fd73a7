package dev.kvasir.runner;

import dev.kvasir.KvGeometry;
import dev.kvasir.internal.json.Json;
import dev.kvasir.runner.file.Gguf;
import dev.kvasir.runner.file.ModelException;
import dev.kvasir.runner.file.SafetensorsModel;
import dev.kvasir.runner.file.WeightFile;
import dev.kvasir.runner.file.Weights;
import dev.kvasir.runner.text.ChatTemplate;
import dev.kvasir.runner.text.Tokenizer;
import dev.kvasir.runner.text.Tokenizers;
import dev.kvasir.tensor.SafetensorsException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.OptionalInt;
import java.util.Set;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/**
 * The weights of a Llama, Mistral, Qwen2 or Qwen3 model: a GGUF file, or a folder in the layout of Hugging Face ({@code
 * config.json}, safetensors, {@code tokenizer.json}). A {@link Decoder} or an {@link Engine} runs it; the weights may be
 * shared by several.
 */
public final class Model {

  /** A projection: weights and, in some models, a bias. */
  record Projection(Weights weights, float @Nullable [] bias) {}

  /** One decoder layer. */
  record Layer(
      float[] attentionNorm,
      Projection queries,
      Projection keys,
      Projection values,
      float @Nullable [] queryNorm,
      float @Nullable [] keyNorm,
      Projection output,
      float[] feedNorm,
      Projection gate,
      Projection up,
      Projection down) {}

  private final String name;
  private final ModelConfig config;
  private final KvGeometry geometry;
  private final Tokenizer tokenizer;
  private final @Nullable String template;
  private final OptionalInt begin;
  private final Weights embedding;
  private final List<Layer> layers;
  private final float[] finalNorm;
  private final Weights head;
  /** The open file whose mapping the weights are, if they are one. */
  private final @Nullable Gguf mapped;

  private Model(
      Path path,
      ModelConfig config,
      Tokenizer tokenizer,
      @Nullable String template,
      OptionalInt begin,
      Reader reader,
      @Nullable Gguf mapped)
      throws IOException {
    this.mapped = mapped;
    this.name = path.toAbsolutePath().normalize().getFileName().toString();
    this.config = config;
    this.geometry = config.geometry();
    this.tokenizer = tokenizer;
    this.template = template;
    this.begin = begin;
    this.embedding = reader.weights(reader.names.embedding(), config.vocabulary(), config.hidden());
    this.layers = new ArrayList<>();
    for (int i = 0; i < config.layers(); i++) {
      layers.add(reader.layer(config, i));
    }
    this.finalNorm = reader.vector(reader.names.finalNorm(), config.hidden());
    this.head =
        config.tiedEmbeddings()
            ? embedding
            : reader.weights(reader.names.head(), config.vocabulary(), config.hidden());
    reader.requireAllRead(path);
  }

  /** Reads a model; the weights of a GGUF file are mapped: see {@link #load(Path, boolean)}. */
  public static Model load(Path path) throws IOException {
    return load(path, false);
  }

  /**
   * Reads a model.
   *
   * <p>Mapped weights of a GGUF file take no memory of their own and are read when they are needed, but they are the
   * file: where somebody cuts it short, the next step is refused, and a step that is under way may end the program.
   * Copied weights take as much memory as the file is long, outside the heap, and need the file no more. Weights of
   * safetensors files are always copied.
   *
   * @param path a GGUF file, or a folder in the layout of Hugging Face
   * @param copied whether weights are copied
   * @throws ModelException if the model is none that can be run, or a tensor is missing or misshapen
   * @throws IOException if a file cannot be read
   */
  public static Model load(Path path, boolean copied) throws IOException {
    if (!Files.isDirectory(path)) {
      return load(Gguf.open(path, copied));
    }
    ModelConfig config = ModelConfig.read(path);
    Tokenizer tokenizer = Tokenizers.of(path, config.vocabulary(), config.bos());
    try (SafetensorsModel file = SafetensorsModel.open(path)) {
      OptionalInt begin = Tokenizers.begin(path, tokenizer);
      String template = Tokenizers.template(path);
      return new Model(path, config, tokenizer, template, begin, new Reader(file, Names.HUGGING_FACE), null);
    } catch (SafetensorsException e) {
      throw new ModelException(path + ": " + e.getMessage(), e);
    }
  }

  /** A model whose weights come from anywhere, under the names that Hugging Face has for them. */
  static Model of(Path name, ModelConfig config, Tokenizer tokenizer, WeightFile file) throws IOException {
    Reader reader = new Reader(file, Names.HUGGING_FACE);
    return new Model(name, config, tokenizer, null, OptionalInt.empty(), reader, null);
  }

  /** Closes the file, unless its mapping is in use. */
  private static Model load(Gguf file) throws IOException {
    boolean kept = false;
    try {
      Path path = file.path();
      ModelConfig config = ModelConfig.read(file);
      String template = file.findText("tokenizer.chat_template").orElse(null);
      Gguf mapped = file.copied() ? null : file;
      Tokenizer tokenizer = Tokenizers.of(file);
      Model model = new Model(path, config, tokenizer, template, config.bos(), new Reader(file, Names.GGUF), mapped);
      kept = mapped != null;
      return model;
    } finally {
      if (!kept) {
        file.close();
      }
    }
  }

  /**
   * Asks whether the file that weights are mapped from is still as long as it was.
   *
   * @throws UncheckedIOException of a ModelException if it is not
   */
  void requireWeights() {
    if (mapped != null) {
      try {
        mapped.requireWhole();
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
  }

  /** What files call things, and what may be there beside them that is no part of the arithmetic. */
  private record Names(
      Pattern spare,
      String embedding,
      String finalNorm,
      String head,
      String layer,
      String attentionNorm,
      String queries,
      String keys,
      String values,
      String queryNorm,
      String keyNorm,
      String output,
      String feedNorm,
      String gate,
      String up,
      String down) {

    static final Names HUGGING_FACE =
        new Names(
            // Frequencies that follow from the configuration, a head that is the embedding, heads for other purposes.
            Pattern.compile("(?s).*\\.rotary_emb\\.inv_freq|lm_head\\.weight|(?!model\\.|lm_head\\.).*"),
            "model.embed_tokens", "model.norm", "lm_head", "model.layers.%d.", "input_layernorm", "self_attn.q_proj",
            "self_attn.k_proj", "self_attn.v_proj", "self_attn.q_norm", "self_attn.k_norm", "self_attn.o_proj",
            "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj");
    static final Names GGUF =
        new Names(
            Pattern.compile("rope_freqs\\.weight"), // which RopeSettings reads
            "token_embd", "output_norm", "output", "blk.%d.", "attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm",
            "attn_k_norm", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down");
  }

  private record Reader(WeightFile file, Names names, Set<String> read) {

    Reader(WeightFile file, Names names) {
      this(file, names, new HashSet<>());
    }

    /** Whoever trained a model with a tensor that nothing asks for here did not train this model. */
    void requireAllRead(Path path) throws ModelException {
      for (String name : file.names()) {
        if (!read.contains(name) && !names.spare().matcher(name).matches()) {
          String shown = Json.abbreviate(name);
          throw new ModelException(path + ": there is a tensor " + shown + ", which no model that can be run has");
        }
      }
    }

    Weights weights(String name, int rows, int width) throws IOException {
      return tensor(name + ".weight", rows, width);
    }

    private Weights tensor(String name, int rows, int width) throws IOException {
      read.add(name);
      return file.read(name).require(rows, width);
    }

    Projection matrix(String name, int outputs, int inputs) throws IOException {
      Weights weights = weights(name, outputs, inputs);
      return new Projection(weights, file.has(name + ".bias") ? floats(name + ".bias", outputs) : null);
    }

    float[] vector(String name, int size) throws IOException {
      return floats(name + ".weight", size);
    }

    private float[] floats(String name, int size) throws IOException {
      return tensor(name, 1, size).floats();
    }

    Layer layer(ModelConfig config, int number) throws IOException {
      String layer = String.format(Locale.ROOT, names.layer(), number);
      int hidden = config.hidden();
      int queries = config.queryHeads() * config.headDim();
      int rows = config.kvHeads() * config.headDim();
      boolean normed = config.type().equals("qwen3");
      return new Layer(
          vector(layer + names.attentionNorm(), hidden),
          matrix(layer + names.queries(), queries, hidden),
          matrix(layer + names.keys(), rows, hidden),
          matrix(layer + names.values(), rows, hidden),
          normed ? vector(layer + names.queryNorm(), config.headDim()) : null,
          normed ? vector(layer + names.keyNorm(), config.headDim()) : null,
          matrix(layer + names.output(), hidden, queries),
          vector(layer + names.feedNorm(), hidden),
          matrix(layer + names.gate(), config.intermediate(), hidden),
          matrix(layer + names.up(), config.intermediate(), hidden),
          matrix(layer + names.down(), hidden, config.intermediate()));
    }
  }

  /** The name of its file or folder. */
  public String name() {
    return name;
  }

  /** What its files say of it. */
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

  /**
   * How conversations are written for this model.
   *
   * @throws ModelException if its files have no template, or one of a family that is not known
   */
  public ChatTemplate chatTemplate() throws ModelException {
    return ChatTemplate.of(template, tokenizer, begin, name);
  }

  /** Weights, embeddings included; tied ones once. */
  public long parameters() {
    long sum = weights(embedding) + finalNorm.length + (head == embedding ? 0 : weights(head));
    for (Layer layer : layers) {
      sum += layer.attentionNorm().length + layer.feedNorm().length;
      for (Projection projection : projections(layer)) {
        sum += weights(projection.weights());
      }
    }
    return sum;
  }

  /** Bytes of all matrices, as they lie in memory or in the mapped file. */
  public long weightBytes() {
    long sum = embedding.size() + (head == embedding ? 0 : head.size());
    for (Layer layer : layers) {
      for (Projection projection : projections(layer)) {
        sum += projection.weights().size();
      }
    }
    return sum;
  }

  private static List<Projection> projections(Layer layer) {
    return List.of(
        layer.queries(), layer.keys(), layer.values(), layer.output(), layer.gate(), layer.up(), layer.down());
  }

  private static long weights(Weights weights) {
    return (long) weights.rows() * weights.width();
  }

  Weights embedding() {
    return embedding;
  }

  List<Layer> layers() {
    return layers;
  }

  float[] finalNorm() {
    return finalNorm;
  }

  Weights head() {
    return head;
  }
}
