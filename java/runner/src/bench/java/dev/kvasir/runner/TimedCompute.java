package dev.kvasir.runner;

import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/** A {@link Compute} whose operations are done when they return, with a clock around each of them. */
final class TimedCompute implements Compute {

  /** What one operation has taken so far, of all layers. Products also know what they multiplied. */
  static final class Time {
    long calls;
    long nanos;
    double products;
    double bytes;
  }

  private record Work(String name, double weights, double bytes) {}

  private final Compute compute;
  private final Map<Matrix, Work> works = new IdentityHashMap<>();
  private final Map<String, Time> times = new LinkedHashMap<>();

  TimedCompute(Compute compute) {
    this.compute = compute;
  }

  /** By the names of operations, in the order in which they first ran. */
  Map<String, Time> times() {
    return times;
  }

  private Time timed(String name, Runnable operation) {
    long start = System.nanoTime();
    operation.run();
    long end = System.nanoTime();
    Time time = times.computeIfAbsent(name, any -> new Time());
    time.calls++;
    time.nanos += end - start;
    return time;
  }

  @Override
  public Matrix matrix(Model.Projection... parts) {
    Matrix matrix = compute.matrix(parts);
    var weights = Arrays.stream(parts).map(Model.Projection::weights).toList();
    String rows = weights.stream().map(each -> Integer.toString(each.rows())).collect(Collectors.joining("+"));
    String types = weights.stream().map(each -> each.type().name()).distinct().collect(Collectors.joining(", "));
    works.put(
        matrix,
        new Work(
            "product " + rows + " x " + weights.get(0).width() + " " + types,
            weights.stream().mapToDouble(each -> (double) each.rows() * each.width()).sum(),
            weights.stream().mapToDouble(each -> each.bytes().remaining()).sum()));
    return matrix;
  }

  @Override
  public Vector vector(float[] values) {
    return compute.vector(values);
  }

  @Override
  public Rows state(int width) {
    return compute.state(width);
  }

  @Override
  public Rows input(int width) {
    return compute.input(width);
  }

  @Override
  public Rows product(int... widths) {
    return compute.product(widths);
  }

  @Override
  public Rows logits(int vocabulary) {
    return compute.logits(vocabulary);
  }

  @Override
  public int logitRows(int vocabulary) {
    return compute.logitRows(vocabulary);
  }

  @Override
  public void begin(List<Decoder.Feed> feeds, int[] tokens, int[] positions) {
    timed("begin", () -> compute.begin(feeds, tokens, positions));
  }

  @Override
  public void embed(Matrix matrix, Rows state) {
    timed("embed", () -> compute.embed(matrix, state));
  }

  @Override
  public void norm(Rows state, int count, Vector weight, Rows input) {
    timed("norm", () -> compute.norm(state, count, weight, input));
  }

  @Override
  public void project(Rows input, int count, Matrix matrix, Rows product) {
    Work work = works.get(matrix);
    Time time = timed(work.name(), () -> compute.project(input, count, matrix, product));
    time.products += count * work.weights();
    time.bytes += work.bytes();
  }

  @Override
  public void heads(Rows product, @Nullable Vector queryNorm, @Nullable Vector keyNorm, boolean turnKeys) {
    timed("heads", () -> compute.heads(product, queryNorm, keyNorm, turnKeys));
  }

  @Override
  public void append(int layer, Rows product) {
    timed("append", () -> compute.append(layer, product));
  }

  @Override
  public void attend(int layer, Rows product, Rows input) {
    timed("attend", () -> compute.attend(layer, product, input));
  }

  @Override
  public void swiglu(Rows product, Rows input) {
    timed("swiglu", () -> compute.swiglu(product, input));
  }

  @Override
  public void add(Rows product, Rows state, @Nullable Vector weight, @Nullable Rows input) {
    timed("add and norm", () -> compute.add(product, state, weight, input));
  }

  @Override
  public void gather(Rows state, int[] from, int count, Rows out) {
    timed("gather", () -> compute.gather(state, from, count, out));
  }

  @Override
  public int[] likeliest(Rows logits, int count) {
    int[][] found = new int[1][];
    timed("likeliest", () -> found[0] = compute.likeliest(logits, count));
    return found[0];
  }

  @Override
  public FloatBuffer read(Rows logits, int count) {
    return compute.read(logits, count);
  }

  @Override
  public FloatBuffer queries(Rows product) {
    return compute.queries(product);
  }

  @Override
  public FloatBuffer outputs(Rows input) {
    return compute.outputs(input);
  }

  @Override
  public void close() {
    compute.close();
  }
}
