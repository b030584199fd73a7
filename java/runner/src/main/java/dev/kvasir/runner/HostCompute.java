package dev.kvasir.runner;

import dev.kvasir.internal.model.ModelOperations;
import dev.kvasir.internal.model.NativeFloats;
import dev.kvasir.internal.model.NativeWeights;
import dev.kvasir.rope.Rope;
import dev.kvasir.runner.file.Weights;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** {@link Compute} on the CPU: weights where their file is mapped or was read to, activations outside the heap. */
final class HostCompute implements Compute {

  private record HostMatrix(NativeWeights weights, @Nullable NativeFloats bias) implements Matrix {}

  private record HostVector(NativeFloats values) implements Vector {}

  private static final class HostRows implements Rows {
    final int width;
    NativeFloats values;

    HostRows(int width, int count) {
      this.width = width;
      this.values = new NativeFloats(Math.multiplyExact(width, count));
    }
  }

  private final HostAttention attention = new HostAttention();
  private final List<HostRows> all = new ArrayList<>();
  private final Rope rope;
  private final double[] frequencies;
  private final double epsilon;
  private final int headDim;
  private NativeFloats turns = new NativeFloats(0);
  private int room;

  HostCompute(ModelConfig config) {
    this.rope = config.rope();
    this.frequencies = rope.frequencies();
    this.epsilon = config.normEpsilon();
    this.headDim = config.headDim();
  }

  @Override
  public Matrix matrix(Weights weights, float @Nullable [] bias) {
    return new HostMatrix(
        new NativeWeights(weights.bytes(), weights.type().code(), weights.rows(), weights.width()),
        bias == null ? null : NativeFloats.of(bias));
  }

  @Override
  public Vector vector(float[] values) {
    return new HostVector(NativeFloats.of(values));
  }

  @Override
  public Rows rows(int width) {
    HostRows rows = new HostRows(width, 0);
    all.add(rows);
    return rows;
  }

  @Override
  public Rows rows(int width, int count) {
    return new HostRows(width, count);
  }

  @Override
  public void reserve(int count) {
    if (count <= room) {
      return;
    }
    for (HostRows rows : all) {
      rows.values = new NativeFloats(Math.multiplyExact(count, rows.width));
    }
    turns = new NativeFloats(Math.multiplyExact(count, headDim));
    room = count;
  }

  @Override
  public void embed(int[] tokens, int count, Matrix matrix, Rows out) {
    ModelOperations.embed(tokens, count, ((HostMatrix) matrix).weights(), values(out));
  }

  @Override
  public void project(Rows in, int count, Matrix matrix, Rows out) {
    HostMatrix known = (HostMatrix) matrix;
    ModelOperations.project(values(in), known.weights(), known.bias(), count, values(out));
  }

  @Override
  public void norm(Rows in, int count, int parts, Vector weight, Rows out) {
    NativeFloats by = ((HostVector) weight).values();
    ModelOperations.rmsNorm(values(in), by, epsilon, count * parts, by.buffer().capacity(), values(out));
  }

  @Override
  public void positions(int[] positions, int count) {
    ModelOperations.ropeTurns(frequencies, rope.attentionFactor(), positions, count, turns);
  }

  @Override
  public void turn(Rows rows, int count, int heads) {
    ModelOperations.ropeTurn(turns, count, heads, headDim, rope.pairs().code(), values(rows));
  }

  @Override
  public void swiglu(Rows gate, Rows up, int count) {
    ModelOperations.swiglu(values(gate), values(up), count * ((HostRows) gate).width, values(gate));
  }

  @Override
  public void add(Rows in, int count, Rows out) {
    ModelOperations.add(values(in), count * ((HostRows) in).width, values(out));
  }

  @Override
  public void gather(Rows in, int[] from, int count, Rows out) {
    int width = ((HostRows) in).width;
    for (int i = 0; i < count; i++) {
      floats(out).put(i * width, floats(in), from[i] * width, width);
    }
  }

  @Override
  public void attend(int layer, List<Decoder.Feed> feeds, Rows queries, Rows keys, Rows values, Rows out) {
    attention.run(layer, feeds, floats(queries), floats(keys), floats(values), floats(out));
  }

  @Override
  public FloatBuffer read(Rows rows, int count) {
    return floats(rows);
  }

  private static NativeFloats values(Rows rows) {
    return ((HostRows) rows).values;
  }

  private static FloatBuffer floats(Rows rows) {
    return values(rows).buffer();
  }
}
