package dev.kvasir.calibrate;

import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.internal.Checks;
import java.util.Objects;
import org.ojalgo.matrix.decomposition.LU;
import org.ojalgo.matrix.store.MatrixStore;
import org.ojalgo.matrix.store.R064Store;

/**
 * Puts bases of {@link dev.kvasir.method.Spectral} into a model's weights, so that rows come as coefficients and a step
 * pays nothing for the basis.
 *
 * <p>With B the vectors of a basis, a row is x = z B. A value projection times the inverse of B gives z, and an output
 * projection times B takes sums of z: the model computes what it did before. So do queries times B with keys times its
 * inverse, but only where nothing is done to them in between: models that turn keys by their position (RoPE) cannot have
 * the basis of keys in their weights, and leave it to the cache.
 *
 * <pre>{@code
 * SpectralFolding folding = new SpectralFolding(bases);
 * folding.foldValues(layer, valueProjection, outputProjection, hidden);
 * KvMethod method = Spectral.of(bases.without(Side.VALUES), 2.0);
 * }</pre>
 *
 * <p>The norm of a row is then that of its coefficients, which spreads errors a little differently.
 */
public final class SpectralFolding {

  private final SpectralBases bases;
  private final KvGeometry geometry;

  /**
   * Folding of these bases.
   *
   * @param bases of a model
   */
  public SpectralFolding(SpectralBases bases) {
    this.bases = Objects.requireNonNull(bases, "bases");
    this.geometry = bases.geometry();
  }

  /**
   * Changes a layer's weights such that values come as coefficients. A layer without a basis stays as it is.
   *
   * @param layer 0 .. layers-1
   * @param values {@code [kvHeads * headDim][hidden]}, as models store it; changed in place
   * @param output {@code [hidden][queryHeads * headDim]}, likewise
   * @param hidden the model's width
   * @throws IllegalArgumentException if there is no such layer, a matrix has another size, or the vectors of the basis do
   *     not span the space; nothing is changed then
   */
  public void foldValues(int layer, float[] values, float[] output, int hidden) {
    Checks.layer(layer, geometry.layers());
    requireSize("a value projection", values, (long) geometry.rowSize(layer) * hidden);
    requireSize("an output projection", output, (long) geometry.querySize(layer) * hidden);
    MatrixStore<?>[] vectors = vectors(layer, Side.VALUES);
    if (vectors.length == 0) {
      return;
    }
    foldInverse(inverses(layer, Side.VALUES, vectors), values, hidden);
    int d = geometry.headDim(layer);
    int heads = geometry.queryHeads(layer);
    int group = heads / geometry.kvHeads(layer);
    double[] folded = new double[d];
    for (int row = 0; row < hidden; row++) {
      for (int head = 0; head < heads; head++) {
        int at = (row * heads + head) * d;
        for (int c = 0; c < d; c++) {
          folded[c] = 0;
          for (int i = 0; i < d; i++) {
            folded[c] += output[at + i] * vectors[head / group].doubleValue(c, i);
          }
        }
        for (int c = 0; c < d; c++) {
          output[at + c] = (float) folded[c];
        }
      }
    }
  }

  /**
   * Changes a layer's weights such that keys come as coefficients: for models that do nothing to queries and keys after
   * their projections. A layer without a basis stays as it is.
   *
   * @param layer 0 .. layers-1
   * @param queries {@code [queryHeads * headDim][hidden]}, as models store it; changed in place
   * @param keys {@code [kvHeads * headDim][hidden]}, likewise
   * @param hidden the model's width
   * @throws IllegalArgumentException if there is no such layer, a matrix has another size, or the vectors of the basis do
   *     not span the space; nothing is changed then
   */
  public void foldKeys(int layer, float[] queries, float[] keys, int hidden) {
    Checks.layer(layer, geometry.layers());
    requireSize("a query projection", queries, (long) geometry.querySize(layer) * hidden);
    requireSize("a key projection", keys, (long) geometry.rowSize(layer) * hidden);
    MatrixStore<?>[] vectors = vectors(layer, Side.KEYS);
    if (vectors.length == 0) {
      return;
    }
    foldInverse(inverses(layer, Side.KEYS, vectors), keys, hidden);
    int group = geometry.queryHeads(layer) / geometry.kvHeads(layer);
    for (int head = 0; head < geometry.queryHeads(layer); head++) {
      MatrixStore<?> of = vectors[head / group];
      multiplyRows(of, false, queries, head, hidden);
    }
  }

  /** Rows of all kv heads become coefficients: those of a head times the inverse, from the left and turned over. */
  private static void foldInverse(MatrixStore<?>[] inverses, float[] projection, int hidden) {
    for (int head = 0; head < inverses.length; head++) {
      multiplyRows(inverses[head], true, projection, head, hidden);
    }
  }

  /** The d rows of a head, times a matrix from the left. */
  private static void multiplyRows(
      MatrixStore<?> matrix, boolean transposed, float[] projection, int head, int hidden) {
    int d = (int) matrix.countRows();
    double[] column = new double[d];
    for (int h = 0; h < hidden; h++) {
      for (int c = 0; c < d; c++) {
        column[c] = 0;
        for (int i = 0; i < d; i++) {
          double factor = transposed ? matrix.doubleValue(i, c) : matrix.doubleValue(c, i);
          column[c] += factor * projection[(head * d + i) * hidden + h];
        }
      }
      for (int c = 0; c < d; c++) {
        projection[(head * d + c) * hidden + h] = (float) column[c];
      }
    }
  }

  private MatrixStore<?>[] vectors(int layer, Side side) {
    int d = geometry.headDim(layer);
    float[] all = bases.basis(layer, side).orElse(new float[0]);
    MatrixStore<?>[] matrices = new MatrixStore<?>[all.length / (d * d)];
    for (int head = 0; head < matrices.length; head++) {
      R064Store matrix = R064Store.FACTORY.make(d, d);
      for (int i = 0; i < d * d; i++) {
        matrix.set(i / d, i % d, all[head * d * d + i]);
      }
      matrices[head] = matrix;
    }
    return matrices;
  }

  private static MatrixStore<?>[] inverses(int layer, Side side, MatrixStore<?>[] vectors) {
    MatrixStore<?>[] inverses = new MatrixStore<?>[vectors.length];
    for (int head = 0; head < vectors.length; head++) {
      LU<Double> lu = LU.R064.make((R064Store) vectors[head]);
      Checks.require(
          lu.decompose((R064Store) vectors[head]) && lu.isSolvable(),
          "layer " + layer + ", " + side + ": the vectors of kv head " + head + " do not span the space");
      inverses[head] = lu.getInverse().copy();
    }
    return inverses;
  }

  private static void requireSize(String what, float[] matrix, long size) {
    Checks.require(matrix.length == size, what + " has " + size + " elements, not " + matrix.length);
  }
}
