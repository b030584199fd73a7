package dev.kvasir.runner;

import dev.kvasir.runner.file.Weights;
import java.nio.FloatBuffer;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Where the numbers of a running model are, and what is done with them: weights, rows of activations, the steps of a
 * layer. {@link Decoder} says what runs; no number passes through Java but tokens, positions and, at the end, logits.
 *
 * <p>Handles belong to the implementation that made them. Steps run in the order of the calls.
 */
interface Compute {

  /** A matrix with an optional bias. */
  interface Matrix {}

  /** A vector of weights. */
  interface Vector {}

  /** Rows of activations, as many as {@link #reserve} made room for. */
  interface Rows {}

  /** The weights, where this computes. */
  Matrix matrix(Weights weights, float @Nullable [] bias);

  /** The same for a vector. */
  Vector vector(float[] values);

  /** Rows of this width, without room yet. */
  Rows rows(int width);

  /** The same with room for so many rows for ever, which {@link #reserve} does not change. */
  Rows rows(int width, int count);

  /** Makes room for so many rows in all that have no room of their own. What they held is lost. */
  void reserve(int count);

  /** {@code out[t]} = row {@code tokens[t]} of the matrix. */
  void embed(int[] tokens, int count, Matrix matrix, Rows out);

  /** {@code out = in times matrix, plus bias}. */
  void project(Rows in, int count, Matrix matrix, Rows out);

  /** Norms rows, each as {@code parts} parts of the weight's length; in place if {@code out} is {@code in}. */
  void norm(Rows in, int count, int parts, Vector weight, Rows out);

  /** Sets the positions of the rows for {@link #turn}. */
  void positions(int[] positions, int count);

  /** Turns the heads of rows to their positions. */
  void turn(Rows rows, int count, int heads);

  /** {@code gate = silu(gate) * up}. */
  void swiglu(Rows gate, Rows up, int count);

  /** {@code out += in}. */
  void add(Rows in, int count, Rows out);

  /** Copies row {@code from[i]} of {@code in} to row i of {@code out}. */
  void gather(Rows in, int[] from, int count, Rows out);

  /** Appends keys and values of the feeds' tokens to a layer and attends there; rows are in the order of the feeds. */
  void attend(int layer, List<Decoder.Feed> feeds, Rows queries, Rows keys, Rows values, Rows out);

  /** What rows hold, on this machine; valid until the next step. */
  FloatBuffer read(Rows rows, int count);
}
