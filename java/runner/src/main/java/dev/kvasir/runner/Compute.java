package dev.kvasir.runner;

import java.nio.FloatBuffer;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Where the numbers of a running model are, and what is done with them: weights, rows of activations, the steps of a
 * layer. {@link Decoder} says what runs; no number passes through Java but tokens, positions and, at the end, logits or
 * the tokens that they lead to.
 *
 * <p>Handles belong to the implementation that made them. Operations run in the order of the calls. There are three
 * kinds of rows, because their numbers may be of different types: the state, what goes into products, and what comes
 * out of them. All hold as many rows as the step has that {@link #begin} began.
 */
interface Compute extends AutoCloseable {

  /** Matrices that are multiplied with the same rows, one below the other, each with an optional bias. */
  interface Matrix {}

  /** A vector of weights. */
  interface Vector {}

  /** Rows of activations. */
  interface Rows {}

  /** The weights, where this computes. */
  Matrix matrix(Model.Projection... parts);

  /** The same for a vector. */
  Vector vector(float[] values);

  /** Rows of the residual state. */
  Rows state(int width);

  /** Rows that go into products. */
  Rows input(int width);

  /** Rows that come out of a product, with a part for each of its matrices. */
  Rows product(int... widths);

  /** Rows of logits, which have room of their own; few tokens need them. */
  Rows logits(int vocabulary);

  /** How many rows of logits there is room for. */
  int logitRows(int vocabulary);

  /** Begins a step: makes room for its rows and takes note of their tokens and positions. Rows lose what they held. */
  void begin(List<Decoder.Feed> feeds, int[] tokens, int[] positions);

  /**
   * Runs the step: operations from {@link #embed} on that depend on nothing but what the step began with, so that an
   * implementation may keep them and run them again for the next step of the same sequences.
   */
  default void run(Runnable operations) {
    operations.run();
  }

  /** {@code state[t]} = the row of the matrix that the step's token t names. */
  void embed(Matrix matrix, Rows state);

  /** {@code input} = norm of {@code state}, for so many rows. */
  void norm(Rows state, int count, Vector weight, Rows input);

  /** {@code product = input times matrix, plus bias}, for so many rows. */
  void project(Rows input, int count, Matrix matrix, Rows product);

  /** Norms the heads of queries and keys, where there are weights for that, and turns them to their positions. */
  void heads(Rows product, @Nullable Vector queryNorm, @Nullable Vector keyNorm, boolean turnKeys);

  /** Appends keys and values of the step's tokens to a layer: two parts of the product, after {@link #heads}. */
  void append(int layer, Rows product);

  /** {@code input} = what the step's queries, a part of the product, find in a layer. */
  void attend(int layer, Rows product, Rows input);

  /** {@code input = silu(gate) * up}, the two parts of the product. */
  void swiglu(Rows product, Rows input);

  /** {@code state += product}; then {@code input} = norm of that, where there is a weight. */
  void add(Rows product, Rows state, @Nullable Vector weight, @Nullable Rows input);

  /** Copies row {@code from[i]} of {@code state} to row i of {@code out}, another state. */
  void gather(Rows state, int[] from, int count, Rows out);

  /** The index of the highest of each row of logits, as {@link Sampler#likeliest}; -1 where it is not finite. */
  int[] likeliest(Rows logits, int count);

  /** What logits are, on this machine; valid until the next operation. */
  FloatBuffer read(Rows logits, int count);

  /** Queries of the step, after {@link #heads}, and what {@link #attend} made of them: for those who watch. */
  FloatBuffer queries(Rows product);

  /** The same for outputs. */
  FloatBuffer outputs(Rows input);

  /** Gives memory back. */
  @Override
  void close();
}
