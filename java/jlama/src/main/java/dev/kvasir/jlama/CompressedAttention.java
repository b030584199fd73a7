package dev.kvasir.jlama;

import com.github.tjake.jlama.math.VectorMath;
import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.model.CausalSelfAttention;
import com.github.tjake.jlama.safetensors.Config;
import com.github.tjake.jlama.tensor.AbstractTensor;
import com.github.tjake.jlama.tensor.FloatBufferTensor;
import com.github.tjake.jlama.tensor.KvBufferCache;
import com.github.tjake.jlama.tensor.KvasirBuffer;
import com.github.tjake.jlama.tensor.operations.TensorOperationsProvider;
import dev.kvasir.KvSequence;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;

/**
 * The attention of one layer: Jlama's products with weights, and between them one append and one attend, whatever the number
 * of tokens.
 */
final class CompressedAttention extends CausalSelfAttention {

  private final AbstractModel model;
  private final Config config;
  private final int layer;
  private final Sessions sessions;
  private final boolean keysBeforeRope;
  private final Projection queries;
  private final Projection keys;
  private final Projection values;
  private final Projection results;

  private CompressedAttention(
      AbstractModel model,
      int layer,
      Sessions sessions,
      Projection queries,
      Projection keys,
      Projection values,
      Projection results) {
    super(
        model,
        layer,
        queries.bias,
        keys.bias,
        values.bias,
        queries.weights,
        keys.weights,
        values.weights,
        results.bias,
        results.weights);
    this.model = model;
    this.config = model.getConfig();
    this.layer = layer;
    this.sessions = sessions;
    this.keysBeforeRope = sessions.cache().method().keysBeforeRope();
    this.queries = queries;
    this.keys = keys;
    this.values = values;
    this.results = results;
  }

  /** The same weights. */
  static CompressedAttention of(AbstractModel model, int layer, CausalSelfAttention own, Sessions sessions) {
    return new CompressedAttention(
        model,
        layer,
        sessions,
        new Projection(Hidden.ofAttention(own, "queryAttnWeights"), Hidden.ofAttention(own, "queryAttnBias")),
        new Projection(Hidden.ofAttention(own, "keyAttnWeights"), Hidden.ofAttention(own, "keyAttnBias")),
        new Projection(Hidden.ofAttention(own, "valueAttnWeights"), Hidden.ofAttention(own, "valueAttnBias")),
        new Projection(Hidden.ofAttention(own, "outputProjectionWeights"), Hidden.ofAttention(own, "outputProjectionBias")));
  }

  @Override
  public AbstractTensor<?, ?> forward(
      AbstractTensor input,
      int position,
      KvBufferCache.KvBuffer buffer,
      Optional<Consumer<List<AbstractTensor>>> reducer) {
    if (!(buffer instanceof KvasirBuffer session)) {
      throw new IllegalArgumentException("the buffer is not one of the cache that the model has now");
    }
    int tokens = input.shape().first();
    requireContext(position, tokens);
    int width = config.numberOfHeads * config.headSize;
    float[] q = queries.apply(model, input, tokens, config.embeddingLength, width);
    float[] k = keys.apply(model, input, tokens, config.embeddingLength, config.kvLength);
    float[] v = values.apply(model, input, tokens, config.embeddingLength, config.kvLength);
    for (int i = 0; i < tokens; i++) {
      rotate(q, i * width, config.numberOfHeads, position + i);
      if (!keysBeforeRope) {
        rotate(k, i * config.kvLength, config.numberOfKeyValueHeads, position + i);
      }
    }
    KvSequence sequence = session.sequence();
    goTo(sequence, position);
    sessions.append(sequence, layer, k, v, tokens);
    sequence.attend(layer, q, q, tokens);
    AbstractTensor<?, ?> result = project(q, tokens, width);
    reducer.ifPresent(reduce -> reduce.accept(List.of(result)));
    results.addBias(result, config.embeddingLength);
    return result;
  }

  private void requireContext(int position, int tokens) {
    if (position + tokens > config.contextLength) {
      throw new IllegalArgumentException(
          "the session has " + position + " tokens and gets " + tokens + " more: beyond the model's context of "
              + config.contextLength);
    }
  }

  /** Makes the layer as long as the position says. What a caller reads again, or what a call that failed has left, goes. */
  private void goTo(KvSequence sequence, int position) {
    long length = sequence.length(layer);
    if (position > length) {
      throw new IllegalArgumentException("position " + position + " of a session of " + length + " tokens");
    }
    if (position < length) {
      sequence.truncate(position);
    }
  }

  private AbstractTensor<?, ?> project(float[] outputs, int tokens, int width) {
    AbstractTensor<?, ?> result = model.makeDenseTensor(tokens, config.embeddingLength);
    try (AbstractTensor<?, ?> attended = model.makeDenseTensor(tokens, width)) {
      write(attended, outputs, tokens, width);
      try (AbstractTensor<?, ?> factor = Hidden.quantized(model, attended)) {
        multiply(result, factor, results.weights, width, config.embeddingLength);
      }
    }
    return result;
  }

  /** Turns the halves of each head against each other. */
  private void rotate(float[] row, int first, int heads, int position) {
    if (config.ropeFreqs.isEmpty()) {
      return;
    }
    float[][] turns = config.ropeFreqs.get();
    int half = config.headSize / 2;
    for (int head = 0; head < heads; head++) {
      int low = first + head * config.headSize;
      for (int i = 0; i < half; i++) {
        float[] turn = turns[position * half + i];
        float a = row[low + i];
        float b = row[low + half + i];
        row[low + i] = a * turn[0] - b * turn[1];
        row[low + half + i] = a * turn[1] + b * turn[0];
      }
    }
  }

  private static void multiply(
      AbstractTensor<?, ?> result, AbstractTensor<?, ?> input, AbstractTensor<?, ?> weights, int inputs, int outputs) {
    VectorMath.pchunk(
        0,
        outputs,
        (first, count) ->
            TensorOperationsProvider.get().dotProductChunk(result, input, weights, 0, inputs, first, count));
  }

  private static void read(AbstractTensor<?, ?> tensor, float[] rows, int tokens, int width) {
    if (tensor instanceof FloatBufferTensor floats) {
      Hidden.floats(floats).get(0, rows);
      return;
    }
    for (int i = 0; i < tokens; i++) {
      for (int j = 0; j < width; j++) {
        rows[i * width + j] = tensor.get(i, j);
      }
    }
  }

  private static void write(AbstractTensor<?, ?> tensor, float[] rows, int tokens, int width) {
    if (tensor instanceof FloatBufferTensor floats) {
      Hidden.floats(floats).put(0, rows);
      return;
    }
    for (int i = 0; i < tokens; i++) {
      for (int j = 0; j < width; j++) {
        tensor.set(rows[i * width + j], i, j);
      }
    }
  }

  /** A product with weights and, where there is one, a bias. */
  private record Projection(AbstractTensor<?, ?> weights, Optional<AbstractTensor> bias) {

    float[] apply(AbstractModel model, AbstractTensor<?, ?> input, int tokens, int inputs, int outputs) {
      float[] rows = new float[tokens * outputs];
      try (AbstractTensor<?, ?> result = model.makeDenseTensor(tokens, outputs)) {
        multiply(result, input, weights, inputs, outputs);
        addBias(result, outputs);
        read(result, rows, tokens, outputs);
      }
      return rows;
    }

    void addBias(AbstractTensor<?, ?> result, int width) {
      bias.ifPresent(numbers -> TensorOperationsProvider.get().accumulate(result, numbers, 0, width));
    }
  }
}
