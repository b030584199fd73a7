package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/** What a 16-bit sequence should be, as lists of rows, beside the sequence that should be it. */
final class PlainSequence {

  /** How far a sliding-window layer can always step back. */
  private static final int STEP_BACK = 128;

  private static final class Layer {
    final List<float[]> keys = new ArrayList<>();
    final List<float[]> values = new ArrayList<>();
    /** The longest that it has been since it last held all of its tokens for certain. */
    long longest;
  }

  private final KvGeometry geometry;
  private final int sinks;
  private final List<Layer> layers = new ArrayList<>();
  final KvSequence sequence;

  PlainSequence(KvSequence sequence) {
    this.sequence = sequence;
    this.geometry = sequence.cache().geometry();
    this.sinks = sequence.cache().method().sinks();
    for (int layer = 0; layer < geometry.layers(); layer++) {
      layers.add(new Layer());
    }
  }

  int length(int layer) {
    return layers.get(layer).keys.size();
  }

  PlainSequence fork() {
    PlainSequence copy = new PlainSequence(sequence.fork());
    for (int i = 0; i < layers.size(); i++) {
      copy.layers.get(i).keys.addAll(layers.get(i).keys);
      copy.layers.get(i).values.addAll(layers.get(i).values);
      copy.layers.get(i).longest = layers.get(i).longest;
    }
    return copy;
  }

  /** Appends random rows to one layer, by one of the ways to append. */
  void append(int layer, int tokens, Random random) {
    int row = geometry.rowSize(layer);
    float[] keys = Testing.gaussian(random, tokens * row);
    float[] values = Testing.gaussian(random, tokens * row);
    switch (random.nextInt(3)) {
      case 0:
        sequence.append(layer, keys, values, tokens);
        break;
      case 1:
        sequence.append(layer, Testing.direct(keys), Testing.direct(values), tokens);
        break;
      default:
        sequence.append(
            layer, Testing.direct(halves(keys)), Testing.direct(halves(values)), tokens, ElementType.FLOAT16);
    }
    Layer target = layers.get(layer);
    for (int token = 0; token < tokens; token++) {
      target.keys.add(rounded(keys, token * row, row));
      target.values.add(rounded(values, token * row, row));
    }
    target.longest = Math.max(target.longest, target.keys.size());
  }

  /** Cuts both; where the sequence may refuse and does, neither. Returns whether it was done. */
  boolean truncate(int length) {
    try {
      sequence.truncate(length);
    } catch (IllegalArgumentException e) {
      if (mustTruncate(length)) {
        throw e;
      }
      return false;
    }
    for (Layer layer : layers) {
      if (length < layer.keys.size()) {
        layer.keys.subList(length, layer.keys.size()).clear();
        layer.values.subList(length, layer.values.size()).clear();
        layer.longest = length <= sinks ? length : layer.longest;
      }
    }
    return true;
  }

  private boolean mustTruncate(int length) {
    for (int i = 0; i < layers.size(); i++) {
      Layer layer = layers.get(i);
      boolean slides = geometry.slidingWindow(i) > 0;
      if (slides && length < layer.keys.size() && length > sinks && length < layer.longest - STEP_BACK) {
        return false;
      }
    }
    return true;
  }

  /** Asserts that lengths, all visible rows and attention are what they should be. */
  void check(Random random, String where) {
    long shortest = Long.MAX_VALUE;
    for (int layer = 0; layer < layers.size(); layer++) {
      assertEquals(length(layer), sequence.length(layer), where);
      shortest = Math.min(shortest, length(layer));
      if (length(layer) > 0) {
        checkRows(layer, where);
        checkAttention(layer, random, where);
      }
    }
    assertEquals(shortest, sequence.length(), where);
  }

  private void checkRows(int layer, String where) {
    int first = firstVisible(layer, length(layer) - 1);
    int count = length(layer) - first;
    assertArrayEquals(flat(layers.get(layer).keys, first), sequence.read(layer, Side.KEYS, first, count), where);
    assertArrayEquals(flat(layers.get(layer).values, first), sequence.read(layer, Side.VALUES, first, count), where);
  }

  private void checkAttention(int layer, Random random, String where) {
    int size = geometry.querySize(layer);
    boolean mayLookBack = geometry.slidingWindow(layer) == 0 || length(layer) == layers.get(layer).longest;
    int tokens = mayLookBack ? 1 + random.nextInt(Math.min(5, length(layer))) : 1;
    float[] queries = Testing.gaussian(random, tokens * size);
    float[] outputs = new float[tokens * size];
    sequence.attend(layer, queries, outputs, tokens);
    float[] keys = flat(layers.get(layer).keys, 0);
    float[] values = flat(layers.get(layer).values, 0);
    for (int token = 0; token < tokens; token++) {
      int position = length(layer) - tokens + token;
      float[] query = Arrays.copyOfRange(queries, token * size, (token + 1) * size);
      double[] expected =
          Testing.attention(geometry, layer, query, keys, values, firstVisible(layer, position), position + 1);
      Testing.assertClose(expected, outputs, token * size, where + ", layer " + layer + ", position " + position);
    }
  }

  /** The first token that a query at this position sees. */
  private int firstVisible(int layer, int position) {
    long window = geometry.slidingWindow(layer);
    return window == 0 ? 0 : (int) Math.max(0, position + 1 - window);
  }

  private static float[] flat(List<float[]> rows, int first) {
    int size = rows.get(0).length;
    float[] all = new float[(rows.size() - first) * size];
    for (int i = first; i < rows.size(); i++) {
      System.arraycopy(rows.get(i), 0, all, (i - first) * size, size);
    }
    return all;
  }

  private static float[] rounded(float[] data, int offset, int count) {
    float[] row = new float[count];
    for (int i = 0; i < count; i++) {
      row[i] = Testing.half(data[offset + i]);
    }
    return row;
  }

  private static short[] halves(float[] data) {
    short[] bits = new short[data.length];
    for (int i = 0; i < data.length; i++) {
      bits[i] = Testing.halfBits(Testing.half(data[i]));
    }
    return bits;
  }
}
