package dev.kvasir.calibrate;

import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.codebook.SpectralBases;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Checks;
import java.util.Arrays;
import java.util.Objects;
import org.ojalgo.matrix.decomposition.Eigenvalue;
import org.ojalgo.matrix.store.MatrixStore;
import org.ojalgo.matrix.store.R064Store;

/**
 * Finds the bases of {@link dev.kvasir.method.Spectral} from second moments of queries, keys and values, which any engine
 * can show it, text by text.
 *
 * <p>An error e of a key costs attention e' H e, with H the second moment of the queries that look at it; one of a value
 * costs the same with H the second moment of what the output projection makes of it. A is H's root. Rows over their
 * norms, times A, less the mean of their page, have a covariance; its eigenvectors U make the basis: in x A U channels are
 * uncorrelated, and errors cost alike. Rows are stored as sums of the rows of U' A^-1.
 *
 * <p>Some thousand tokens are enough. Not for use by several threads at once.
 */
public final class SpectralCalibrator {

  private static final int PAGE = 128;
  /** Of the mean eigenvalue of H: directions that no query looked at are not worth nothing. */
  private static final double FLOOR = 1e-3;

  private final KvGeometry geometry;
  private final Moments[][] moments; // by layer, side

  /**
   * A calibrator that has seen nothing.
   *
   * @param geometry the model
   */
  public SpectralCalibrator(KvGeometry geometry) {
    this.geometry = Objects.requireNonNull(geometry, "geometry");
    this.moments = new Moments[geometry.layers()][2];
    for (int layer = 0; layer < geometry.layers(); layer++) {
      for (Side side : Side.values()) {
        moments[layer][side.code()] = new Moments(geometry.kvHeads(layer), geometry.headDim(layer));
      }
    }
  }

  /**
   * Adds queries. Those of a text's first tokens, which the method keeps exact, are better left out. Queries of a layer
   * that takes keys from another one look at the keys of that one, and count there.
   *
   * @param layer 0 .. layers-1
   * @param queries after RoPE, {@code [tokens][queryHeads][headDim]}
   * @param tokens how many
   * @throws IllegalArgumentException if there is no such layer, or there are fewer queries
   * @throws NotFiniteException if a query holds NaN or infinity; none is added then
   */
  public void addQueries(int layer, float[] queries, int tokens) {
    Checks.layer(layer, geometry.layers());
    Checks.rows("queries", queries, tokens, geometry.querySize(layer));
    int heads = geometry.queryHeads(layer);
    requireFinite("queries", layer, queries, tokens, heads);
    int group = heads / geometry.kvHeads(layer);
    Moments keys = moments[layer][Side.KEYS.code()];
    for (int row = 0; row < tokens * heads; row++) {
      keys.addToMetric(row % heads / group, queries, row * geometry.headDim(layer));
    }
  }

  /**
   * Adds keys or values of consecutive tokens, from the first that is not a sink on. They count in pages of {@value #PAGE}
   * tokens; those that fill none are left out. Rows that a layer takes from another one count there alone.
   *
   * @param layer 0 .. layers-1
   * @param side keys, as they are after RoPE, or values
   * @param rows {@code [tokens][kvHeads][headDim]}
   * @param tokens how many
   * @throws IllegalArgumentException if there is no such layer, or there are fewer rows
   * @throws NotFiniteException if a row holds NaN or infinity; none is added then
   */
  public void addRows(int layer, Side side, float[] rows, int tokens) {
    Checks.layer(layer, geometry.layers());
    Checks.rows("rows", rows, tokens, geometry.rowSize(layer));
    requireFinite(side == Side.KEYS ? "keys" : "values", layer, rows, tokens, geometry.kvHeads(layer));
    if (geometry.source(layer) != layer) {
      return;
    }
    Moments of = moments[layer][side.code()];
    for (int first = 0; first + PAGE <= tokens; first += PAGE) {
      of.pages++;
      for (int head = 0; head < geometry.kvHeads(layer); head++) {
        of.addPage(head, rows, first, geometry.kvHeads(layer));
      }
    }
  }

  /** Rows are {@code [tokens][heads][headDim]}. */
  private void requireFinite(String input, int layer, float[] rows, int tokens, int heads) {
    int d = geometry.headDim(layer);
    for (int i = 0; i < tokens * heads * d; i++) {
      if (!Float.isFinite(rows[i])) {
        int token = i / d / heads;
        int head = i / d % heads;
        throw new NotFiniteException(
            input + " hold " + rows[i] + " at token " + token + ", head " + head + ", channel " + i % d + " in layer "
                + layer,
            new NotFiniteException.Place(input, layer, token, head, i % d, rows[i]),
            null);
      }
    }
  }

  /**
   * What the output projection makes of a layer's values, which may be those of another one. Without it, all of a
   * value's channels count alike.
   *
   * @param layer the layer
   * @param projection {@code [hidden][queryHeads * headDim]}, as models store it
   * @param hidden its rows
   * @throws IllegalArgumentException if there is no such layer, or it has another size
   * @throws NotFiniteException if it holds NaN or infinity; the one before it then still counts
   */
  public void outputProjection(int layer, float[] projection, int hidden) {
    Checks.layer(layer, geometry.layers());
    int d = geometry.headDim(layer);
    int queryHeads = geometry.queryHeads(layer);
    int group = queryHeads / geometry.kvHeads(layer);
    Checks.require(
        projection.length == (long) hidden * queryHeads * d, "a projection of " + projection.length + " elements");
    for (int i = 0; i < projection.length; i++) {
      if (!Float.isFinite(projection[i])) {
        throw new NotFiniteException(
            "the projection of layer " + layer + " holds " + projection[i] + " at row " + i / (queryHeads * d)
                + ", column " + i % (queryHeads * d),
            null);
      }
    }
    Moments ofValues = moments[layer][Side.VALUES.code()];
    ofValues.clearMetric();
    for (int row = 0; row < hidden; row++) {
      for (int head = 0; head < queryHeads; head++) {
        ofValues.addToMetric(head / group, projection, (row * queryHeads + head) * d);
      }
    }
  }

  /**
   * The bases.
   *
   * @return those of all layers and both sides
   * @throws IllegalStateException if a layer with rows of its own was shown no page of {@value #PAGE} tokens
   */
  public SpectralBases bases() {
    SpectralBases.Builder builder = SpectralBases.builder(geometry);
    for (int layer = 0; layer < geometry.layers(); layer++) {
      for (Side side : geometry.source(layer) == layer ? Side.values() : new Side[0]) {
        Moments of = moments[layer][side.code()];
        if (of.pages == 0) {
          throw new IllegalStateException("layer " + layer + ", " + side + ": no page of " + PAGE + " tokens was shown");
        }
        float[] variances = new float[geometry.rowSize(layer)];
        builder.basis(layer, side, of.basis(metric(layer, side), variances)).variances(layer, side, variances);
      }
    }
    return builder.build();
  }

  /** What errors of a layer's rows cost, in all the layers that have them; empty where none was shown any of it. */
  private double[][] metric(int layer, Side side) {
    int d = geometry.headDim(layer);
    double[][] sums = new double[0][];
    for (int other = 0; other < geometry.layers(); other++) {
      Moments of = moments[other][side.code()];
      if (geometry.source(other) != layer || of.metricRows == 0) {
        continue;
      }
      if (sums.length == 0) {
        sums = new double[geometry.kvHeads(layer)][d * d];
      }
      for (int head = 0; head < sums.length; head++) {
        for (int i = 0; i < d * d; i++) {
          sums[head][i] += of.metric[head][i];
        }
      }
    }
    return sums;
  }

  /** Sums of one side of a layer. */
  private static final class Moments {

    private final int d;
    private final double[][] metric; // by kv head: d x d, lower triangles
    private final double[][] covariance;
    private final double[] page;
    private long metricRows;
    private long pages;

    Moments(int kvHeads, int d) {
      this.d = d;
      this.metric = new double[kvHeads][d * d];
      this.covariance = new double[kvHeads][d * d];
      this.page = new double[PAGE * d];
    }

    void clearMetric() {
      metricRows = 0;
      for (double[] each : metric) {
        Arrays.fill(each, 0);
      }
    }

    void addToMetric(int head, float[] rows, int at) {
      metricRows++;
      addOuter(metric[head], rows, at);
    }

    private void addOuter(double[] sums, float[] rows, int at) {
      for (int i = 0; i < d; i++) {
        double x = rows[at + i];
        for (int j = 0; j <= i; j++) {
          sums[i * d + j] += x * rows[at + j];
        }
      }
    }

    void addPage(int head, float[] rows, int first, int kvHeads) {
      double[] mean = new double[d];
      for (int t = 0; t < PAGE; t++) {
        int at = ((first + t) * kvHeads + head) * d;
        double squares = 0;
        for (int c = 0; c < d; c++) {
          squares += (double) rows[at + c] * rows[at + c];
        }
        double norm = Math.max(1e-6, Math.sqrt(squares / d));
        for (int c = 0; c < d; c++) {
          page[t * d + c] = rows[at + c] / norm;
          mean[c] += page[t * d + c] / PAGE;
        }
      }
      double[] sums = covariance[head];
      for (int t = 0; t < PAGE; t++) {
        for (int i = 0; i < d; i++) {
          double x = page[t * d + i] - mean[i];
          for (int j = 0; j <= i; j++) {
            sums[i * d + j] += x * (page[t * d + j] - mean[j]);
          }
        }
      }
    }

    /** The vectors, by what errors cost; how far rows spread along each of them goes to variances. */
    float[] basis(double[][] costs, float[] variances) {
      float[] vectors = new float[metric.length * d * d];
      for (int head = 0; head < metric.length; head++) {
        MatrixStore<Double> root = root(costs, head);
        Eigenvalue<Double> within = eigen(root.multiply(symmetric(covariance[head])).multiply(root));
        // Rows of U' A^-1, greatest variance first.
        MatrixStore<Double> inverse = within.getV().transpose().multiply(inverseRoot);
        Integer[] order = descending(within);
        for (int c = 0; c < d; c++) {
          double variance = within.getD().doubleValue(order[c], order[c]) / ((double) pages * PAGE);
          variances[head * d + c] = (float) Math.max(0, variance);
          for (int i = 0; i < d; i++) {
            vectors[(head * d + c) * d + i] = inverse.get(order[c], i).floatValue();
          }
        }
      }
      return vectors;
    }

    private MatrixStore<Double> inverseRoot;

    /** A and, beside it, its inverse; scaled so that A's eigenvalues have a mean square of 1. */
    private MatrixStore<Double> root(double[][] costs, int head) {
      if (costs.length == 0) {
        inverseRoot = R064Store.FACTORY.makeEye(d, d);
        return inverseRoot;
      }
      Eigenvalue<Double> eigen = eigen(symmetric(costs[head]));
      double mean = 0;
      for (int i = 0; i < d; i++) {
        mean += eigen.getD().doubleValue(i, i) / d;
      }
      R064Store scaled = R064Store.FACTORY.make(d, d);
      R064Store inverted = R064Store.FACTORY.make(d, d);
      for (int i = 0; i < d; i++) {
        double value = mean > 0 ? Math.sqrt(Math.max(FLOOR, eigen.getD().doubleValue(i, i) / mean)) : 1;
        scaled.set(i, i, value);
        inverted.set(i, i, 1 / value);
      }
      MatrixStore<Double> v = eigen.getV();
      inverseRoot = v.multiply(inverted).multiply(v.transpose());
      return v.multiply(scaled).multiply(v.transpose());
    }

    private R064Store symmetric(double[] lower) {
      R064Store matrix = R064Store.FACTORY.make(d, d);
      for (int i = 0; i < d; i++) {
        for (int j = 0; j <= i; j++) {
          matrix.set(i, j, lower[i * d + j]);
          matrix.set(j, i, lower[i * d + j]);
        }
      }
      return matrix;
    }

    private Eigenvalue<Double> eigen(MatrixStore<Double> matrix) {
      Eigenvalue<Double> eigen = Eigenvalue.R064.make(matrix, true);
      eigen.decompose(matrix);
      return eigen;
    }

    private Integer[] descending(Eigenvalue<Double> eigen) {
      Integer[] order = new Integer[d];
      Arrays.setAll(order, i -> i);
      Arrays.sort(order, (a, b) -> Double.compare(eigen.getD().doubleValue(b, b), eigen.getD().doubleValue(a, a)));
      return order;
    }
  }
}
