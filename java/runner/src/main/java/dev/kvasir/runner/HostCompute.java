package dev.kvasir.runner;

import dev.kvasir.internal.model.ModelOperations;
import dev.kvasir.internal.model.NativeFloats;
import dev.kvasir.internal.model.NativeWeights;
import dev.kvasir.rope.Rope;
import dev.kvasir.runner.file.Weights;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/** {@link Compute} on the CPU: weights where their file is mapped or was read to, activations outside the heap. */
final class HostCompute implements Compute {

  private record Part(NativeWeights weights, @Nullable NativeFloats bias) {}

  private record HostMatrix(List<Part> parts) implements Matrix {}

  private record HostVector(NativeFloats values) implements Vector {}

  /** Parts of rows, each dense. */
  private static final class HostRows implements Rows {
    final int[] widths;
    final NativeFloats[] parts;

    HostRows(int[] widths, int count) {
      this.widths = widths;
      this.parts = new NativeFloats[widths.length];
      reserve(count);
    }

    void reserve(int count) {
      Arrays.setAll(parts, i -> new NativeFloats(Math.multiplyExact(widths[i], count)));
    }
  }

  /** Most logits that are held at once. */
  private static final int LOGIT_BLOCK = 1 << 22;

  private final HostAttention attention = new HostAttention();
  private final List<HostRows> all = new ArrayList<>();
  private final Rope rope;
  private final double[] frequencies;
  private final double epsilon;
  private final int queryHeads;
  private final int kvHeads;
  private final int headDim;
  private NativeFloats turns = new NativeFloats(0);
  private int room;
  private List<Decoder.Feed> feeds = List.of();
  private int[] tokens = {};

  HostCompute(ModelConfig config) {
    this.rope = config.rope();
    this.frequencies = rope.frequencies();
    this.epsilon = config.normEpsilon();
    this.queryHeads = config.queryHeads();
    this.kvHeads = config.kvHeads();
    this.headDim = config.headDim();
  }

  @Override
  public Matrix matrix(Model.Projection... parts) {
    List<Part> found = new ArrayList<>();
    for (Model.Projection part : parts) {
      var weights = part.weights();
      found.add(
          new Part(
              new NativeWeights(weights.bytes(), weights.type().code(), weights.rows(), weights.width()),
              part.bias() == null ? null : NativeFloats.of(part.bias())));
    }
    return new HostMatrix(found);
  }

  /** A matrix as floats, {@code [rows][width]}. */
  static float[] widened(Weights weights) {
    int rows = weights.rows();
    NativeFloats wide = new NativeFloats(Math.multiplyExact(rows, weights.width()));
    NativeWeights known = new NativeWeights(weights.bytes(), weights.type().code(), rows, weights.width());
    ModelOperations.embed(IntStream.range(0, rows).toArray(), rows, known, wide);
    float[] out = new float[wide.buffer().capacity()];
    wide.buffer().get(0, out);
    return out;
  }

  @Override
  public Vector vector(float[] values) {
    return new HostVector(NativeFloats.of(values));
  }

  @Override
  public Rows state(int width) {
    return product(width);
  }

  @Override
  public Rows input(int width) {
    return product(width);
  }

  @Override
  public Rows product(int... widths) {
    HostRows rows = new HostRows(widths, 0);
    all.add(rows);
    return rows;
  }

  @Override
  public Rows logits(int vocabulary) {
    return new HostRows(new int[] {vocabulary}, logitRows(vocabulary));
  }

  @Override
  public int logitRows(int vocabulary) {
    return Math.max(1, LOGIT_BLOCK / vocabulary);
  }

  @Override
  public void begin(List<Decoder.Feed> step, int[] ids, int[] positions) {
    feeds = step;
    tokens = ids;
    if (ids.length > room) {
      all.forEach(rows -> rows.reserve(ids.length));
      turns = new NativeFloats(Math.multiplyExact(ids.length, headDim));
      room = ids.length;
    }
    ModelOperations.ropeTurns(frequencies, rope.attentionFactor(), positions, ids.length, turns);
  }

  @Override
  public void embed(Matrix matrix, Rows state) {
    ModelOperations.embed(tokens, tokens.length, ((HostMatrix) matrix).parts().get(0).weights(), values(state, 0));
  }

  @Override
  public void norm(Rows state, int count, Vector weight, Rows input) {
    norm(values(state, 0), count, weight, values(input, 0));
  }

  private void norm(NativeFloats in, int rows, Vector weight, NativeFloats out) {
    NativeFloats by = ((HostVector) weight).values();
    ModelOperations.rmsNorm(in, by, epsilon, rows, by.buffer().capacity(), out);
  }

  @Override
  public void project(Rows input, int count, Matrix matrix, Rows product) {
    List<Part> parts = ((HostMatrix) matrix).parts();
    for (int i = 0; i < parts.size(); i++) {
      Part part = parts.get(i);
      ModelOperations.project(values(input, 0), part.weights(), part.bias(), count, values(product, i));
    }
  }

  @Override
  public void heads(Rows product, @Nullable Vector queryNorm, @Nullable Vector keyNorm, boolean turnKeys) {
    NativeFloats queries = values(product, 0);
    NativeFloats keys = values(product, 1);
    int count = tokens.length;
    if (queryNorm != null) {
      norm(queries, count * queryHeads, queryNorm, queries);
    }
    if (keyNorm != null) {
      norm(keys, count * kvHeads, keyNorm, keys);
    }
    ModelOperations.ropeTurn(turns, count, queryHeads, headDim, rope.pairs().code(), queries);
    if (turnKeys) {
      ModelOperations.ropeTurn(turns, count, kvHeads, headDim, rope.pairs().code(), keys);
    }
  }

  @Override
  public void append(int layer, Rows product) {
    attention.append(
        layer, feeds, values(product, 0).buffer(), values(product, 1).buffer(), values(product, 2).buffer());
  }

  @Override
  public void attend(int layer, Rows product, Rows input) {
    attention.attend(layer, feeds, values(product, 0).buffer(), values(input, 0).buffer());
  }

  @Override
  public void swiglu(Rows product, Rows input) {
    int count = tokens.length * ((HostRows) input).widths[0];
    ModelOperations.swiglu(values(product, 0), values(product, 1), count, values(input, 0));
  }

  @Override
  public void add(Rows product, Rows state, @Nullable Vector weight, @Nullable Rows input) {
    ModelOperations.add(values(product, 0), tokens.length * ((HostRows) state).widths[0], values(state, 0));
    if (weight != null && input != null) {
      norm(state, tokens.length, weight, input);
    }
  }

  @Override
  public void gather(Rows state, int[] from, int count, Rows out) {
    int width = ((HostRows) state).widths[0];
    for (int i = 0; i < count; i++) {
      values(out, 0).buffer().put(i * width, values(state, 0).buffer(), from[i] * width, width);
    }
  }

  @Override
  public int[] likeliest(Rows logits, int count) {
    float[] row = new float[((HostRows) logits).widths[0]];
    int[] best = new int[count];
    for (int i = 0; i < count; i++) {
      values(logits, 0).buffer().get(i * row.length, row);
      best[i] = Sampler.likeliest(row);
      best[i] = Float.isFinite(row[best[i]]) ? best[i] : -1;
    }
    return best;
  }

  @Override
  public FloatBuffer read(Rows logits, int count) {
    return values(logits, 0).buffer();
  }

  @Override
  public FloatBuffer queries(Rows product) {
    return values(product, 0).buffer();
  }

  @Override
  public FloatBuffer outputs(Rows input) {
    return values(input, 0).buffer();
  }

  @Override
  public void close() {}

  private static NativeFloats values(Rows rows, int part) {
    return ((HostRows) rows).parts[part];
  }
}
