package dev.kvasir.stress;

import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import dev.kvasir.method.CommVq;
import dev.kvasir.method.HalfPrecision;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * What a sequence should be, as plain arrays, beside the sequence that should be it.
 *
 * <p>It knows every row that was appended. What is compressed may differ from it by as much as the rows' range; attention
 * must be that of the rows as {@code read} gives them, in double precision; and a page that was sealed stays as it is.
 */
final class Mirror {

  /** Normalised mean squared error of attention: what {@code Precision.EXACT} promises. */
  private static final double EXACT = 1e-6;

  private static final int MAX_CHECKED_ROWS = 400;

  /** One layer: rows by side, and digests of sealed pages. */
  private static final class Layer {
    final Map<Side, List<float[]>> rows = new EnumMap<>(Side.class);
    final Map<Long, Integer> pages = new HashMap<>();

    Layer() {
      rows.put(Side.KEYS, new ArrayList<>());
      rows.put(Side.VALUES, new ArrayList<>());
    }
  }

  final KvSequence sequence;
  private final KvGeometry geometry;
  private final double scale;
  private final List<Layer> layers = new ArrayList<>();

  /**
   * @param sequence empty
   * @param scale the standard deviation of rows
   */
  Mirror(KvSequence sequence, double scale) {
    this.sequence = sequence;
    this.geometry = sequence.cache().geometry();
    this.scale = scale;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      layers.add(new Layer());
    }
  }

  int length(int layer) {
    return layers.get(layer).rows.get(Side.KEYS).size();
  }

  /** The sequence was forked: so is this. */
  Mirror forked(KvSequence fork) {
    Mirror copy = new Mirror(fork, scale);
    for (int layer = 0; layer < layers.size(); layer++) {
      for (Side side : Side.values()) {
        copy.layers.get(layer).rows.get(side).addAll(layers.get(layer).rows.get(side));
      }
      copy.layers.get(layer).pages.putAll(layers.get(layer).pages);
    }
    return copy;
  }

  /** Rows were appended to a layer. */
  void appended(int layer, float[] keys, float[] values, int tokens) {
    int row = geometry.rowSize(layer);
    for (int token = 0; token < tokens; token++) {
      layers.get(layer).rows.get(Side.KEYS).add(Arrays.copyOfRange(keys, token * row, (token + 1) * row));
      layers.get(layer).rows.get(Side.VALUES).add(Arrays.copyOfRange(values, token * row, (token + 1) * row));
    }
  }

  /**
   * The sequence was cut. Pages that the cut went through were reopened: their rows are from now on what they had been
   * compressed to.
   */
  void truncated(long length) {
    for (int layer = 0; layer < layers.size(); layer++) {
      if (length >= length(layer)) {
        continue;
      }
      layers.get(layer).pages.clear();
      for (Side side : Side.values()) {
        List<float[]> rows = layers.get(layer).rows.get(side);
        rows.subList((int) length, rows.size()).clear();
        int first = firstVisible(layer);
        int count = rows.size() - first;
        if (count > 0) {
          float[] read = sequence.read(layer, side, first, count);
          checkRows(layer, side, first, read);
          int row = geometry.rowSize(layer);
          for (int i = 0; i < count; i++) {
            rows.set(first + i, Arrays.copyOfRange(read, i * row, (i + 1) * row));
          }
        }
      }
    }
  }

  /** Lengths alone: cheap, after every call. */
  void checkLengths() {
    for (int layer = 0; layer < layers.size(); layer++) {
      long actual = sequence.length(layer);
      int expected = length(layer);
      Violation.unless(actual == expected, "layer " + layer + " has " + actual + " tokens, not " + expected);
    }
  }

  /** Everything of one layer. */
  void check(int layer, Random random) {
    checkLengths();
    int first = Math.max(firstVisible(layer), 0);
    int count = length(layer) - first;
    if (count == 0) {
      return;
    }
    checkPages(layer);
    if (count > MAX_CHECKED_ROWS && geometry.slidingWindow(layer) == 0) {
      int part = random.nextInt(count - MAX_CHECKED_ROWS);
      for (Side side : Side.values()) {
        checkRows(layer, side, part, sequence.read(layer, side, part, MAX_CHECKED_ROWS));
      }
      if (random.nextInt(4) != 0) {
        return;
      }
    }
    long shrinks = shrinks();
    float[] keys = sequence.read(layer, Side.KEYS, first, count);
    float[] values = sequence.read(layer, Side.VALUES, first, count);
    checkRows(layer, Side.KEYS, first, keys);
    checkRows(layer, Side.VALUES, first, values);
    double error = attentionError(layer, keys, values, count, random);
    // Another thread's append may have taken bits from these pages meanwhile: then the rows were read too early.
    Violation.unless(
        error <= EXACT || shrinks != shrinks(),
        sequence.cache().method().name() + ": attention of layer " + layer + " over " + count + " tokens is off by " + error);
  }

  private long shrinks() {
    return Recipes.shrinks(sequence.cache().method()) ? sequence.cache().stats().total().shrinks().count() : 0;
  }

  private int firstVisible(int layer) {
    long window = geometry.slidingWindow(layer);
    return window == 0 ? 0 : (int) Math.max(0, length(layer) - window);
  }

  private void checkRows(int layer, Side side, int first, float[] read) {
    int row = geometry.rowSize(layer);
    List<float[]> rows = layers.get(layer).rows.get(side);
    // Rows are normally distributed: six deviations either way hold them all, and a code is never off by more than that.
    double allowed = sequence.cache().method() instanceof HalfPrecision ? 1e-3 * 6 * scale : 12 * scale;
    boolean noise = sequence.cache().method() instanceof CommVq;
    for (int i = 0; i < read.length; i++) {
      float expected = rows.get(first + i / row)[i % row];
      if (!(Math.abs(read[i] - expected) <= allowed) && !(noise && Float.isFinite(read[i]))) {
        throw new Violation(
            side + " of layer " + layer + ", token " + (first + i / row) + ", element " + i % row + ": " + read[i]
                + " was " + expected);
      }
    }
  }

  private void checkPages(int layer) {
    if (geometry.slidingWindow(layer) > 0 || Recipes.shrinks(sequence.cache().method())) {
      return;
    }
    Map<Long, Integer> known = layers.get(layer).pages;
    for (long page = 0; page < sequence.pageCount(layer); page++) {
      int digest =
          31 * Arrays.hashCode(sequence.readPage(layer, page, Side.KEYS, 0))
              + Arrays.hashCode(sequence.readPage(layer, page, Side.VALUES, geometry.kvHeads(layer) - 1));
      Integer before = known.putIfAbsent(page, digest);
      Violation.unless(before == null || before == digest, "page " + page + " of layer " + layer + " changed");
    }
  }

  /** The error of a random query's output; 0 where rows are read as they are before RoPE, and it is a number. */
  private double attentionError(int layer, float[] keys, float[] values, int count, Random random) {
    float[] query = Recipes.gaussian(random, geometry.querySize(layer), 1 / scale);
    float[] output = new float[query.length];
    sequence.attend(layer, query, output);
    if (sequence.cache().method().keysBeforeRope()) {
      for (float element : output) {
        Violation.unless(Float.isFinite(element), "an output of layer " + layer + " is " + element);
      }
      return 0;
    }
    return PlainAttention.error(geometry, layer, query, keys, values, count, output);
  }
}
