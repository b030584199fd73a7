package dev.kvasir.runner;

import dev.kvasir.ElementType;
import dev.kvasir.Precision;
import dev.kvasir.internal.model.DeviceOperations;
import dev.kvasir.rope.Rope;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.runner.file.WeightFile;
import dev.kvasir.runner.file.WeightType;
import dev.kvasir.runner.file.Weights;
import dev.kvasir.runner.text.Tokenizer;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Set;

/** Models of well-known shapes without files: their matrices are made on the device, of random numbers. */
final class RandomModel implements WeightFile {

  /** Shapes by name. */
  static final Map<String, ModelConfig> SHAPES =
      Map.of(
          "llama-3.1-8b", shape("llama", 128256, 4096, 14336, 32, 32, 8, 500000),
          "qwen2.5-7b", shape("qwen2", 152064, 3584, 18944, 28, 28, 4, 1000000),
          "llama-2-13b", shape("llama", 32000, 5120, 13824, 40, 40, 40, 10000));

  private final ModelConfig config;

  private RandomModel(ModelConfig config) {
    this.config = config;
  }

  private static ModelConfig shape(
      String type, int vocabulary, int hidden, int intermediate, int layers, int heads, int kvHeads, double base) {
    int headDim = hidden / heads;
    return new ModelConfig(
        type, vocabulary, hidden, intermediate, layers, heads, kvHeads, headDim, 1 << 18, 0, 1e-5, false,
        Rope.plain(RopePairs.HALVES, base, headDim), OptionalInt.empty(), List.of());
  }

  static Model of(String name) throws IOException {
    ModelConfig config = SHAPES.get(name);
    if (config == null) {
      throw new IllegalArgumentException("no shape \"" + name + "\"; there are " + SHAPES.keySet());
    }
    return Model.of(Path.of(name), config, new NoText(), new RandomModel(config));
  }

  /** A place to run such a model. */
  static CudaCompute compute(ModelConfig config, Precision precision) {
    CudaCompute.create(config, precision).close(); // says what is missing
    return new CudaCompute(config, precision) {
      private long seed;

      /** Of a size that keeps activations as they are. */
      @Override
      void upload(Weights weights, long address) {
        long count = (long) weights.rows() * weights.width();
        DeviceOperations.random(
            seed++, 1 / Math.sqrt(weights.width()), count, ElementType.BFLOAT16, address, device().stream().handle());
      }
    };
  }

  @Override
  public Set<String> names() {
    return Set.of(); // it has whatever it is asked for
  }

  @Override
  public boolean has(String name) {
    return config.type().equals("qwen2") && name.matches(".*self_attn\\.[qkv]_proj\\.bias");
  }

  @Override
  public Weights read(String name) {
    int querySize = config.queryHeads() * config.headDim();
    int rowSize = config.kvHeads() * config.headDim();
    if (name.matches(".*(embed_tokens|lm_head)\\.weight")) {
      return matrix(name, config.vocabulary(), config.hidden());
    } else if (name.contains("q_proj")) {
      return name.endsWith("bias") ? vector(name, querySize, 0) : matrix(name, querySize, config.hidden());
    } else if (name.matches(".*[kv]_proj.*")) {
      return name.endsWith("bias") ? vector(name, rowSize, 0) : matrix(name, rowSize, config.hidden());
    } else if (name.contains("o_proj")) {
      return matrix(name, config.hidden(), querySize);
    } else if (name.contains("down_proj")) {
      return matrix(name, config.hidden(), config.intermediate());
    } else if (name.matches(".*(gate|up)_proj.*")) {
      return matrix(name, config.intermediate(), config.hidden());
    }
    return vector(name, config.hidden(), 1);
  }

  /** Only a shape: {@link #compute} fills it. */
  private static Weights matrix(String name, int rows, int width) {
    return new Weights(name, WeightType.BF16, rows, width, ByteBuffer.allocateDirect(0));
  }

  private static Weights vector(String name, int size, float value) {
    ByteBuffer bytes = ByteBuffer.allocateDirect(4 * size).order(ByteOrder.LITTLE_ENDIAN);
    for (int i = 0; i < size; i++) {
      bytes.putFloat(4 * i, value);
    }
    return new Weights(name, WeightType.F32, 1, size, bytes);
  }

  @Override
  public void close() {}

  /** Tokens without texts. */
  private static final class NoText implements Tokenizer {
    @Override
    public int[] encode(byte[] text) {
      throw new UnsupportedOperationException("a random model reads no text");
    }

    @Override
    public byte[] decode(int... tokens) {
      return new byte[0];
    }

    @Override
    public int[] prefix() {
      return new int[0];
    }

    @Override
    public OptionalInt special(String name) {
      return OptionalInt.empty();
    }
  }
}
