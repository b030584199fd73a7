package dev.kvasir.lab.evaluate;

import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.lab.inspect.Recording;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * What codebooks are trained on: keys before RoPE and values of tokens picked at random from all that a model read. Tokens
 * near each other are alike, so some of many sequences teach more than all of a few.
 */
public final class TrainingRows {

  private static final long SEED = 5;

  private final int count;
  private final float[][] keys;
  private final float[][] values;

  private TrainingRows(KvGeometry geometry, int count) {
    this.count = count;
    this.keys = new float[geometry.layers()][];
    this.values = new float[geometry.layers()][];
    Arrays.setAll(keys, layer -> new float[count * geometry.rowSize(layer)]);
    Arrays.setAll(values, layer -> new float[count * geometry.rowSize(layer)]);
  }

  /**
   * Lets a model read.
   *
   * @param sequences tokens, each from the model's prefix on
   * @param most how many of them to keep
   */
  static TrainingRows read(Decoder decoder, List<int[]> sequences, int most) {
    Model model = decoder.model();
    int all = sequences.stream().mapToInt(tokens -> tokens.length).sum();
    // places[i]: where row i goes, or beyond the end where it is not kept. A shuffle, so that any first rows will do.
    List<Integer> places = IntStream.range(0, all).boxed().collect(Collectors.toList());
    Collections.shuffle(places, new Random(SEED));
    TrainingRows rows = new TrainingRows(model.geometry(), Math.min(all, most));
    int first = 0;
    for (int[] tokens : sequences) {
      Recording recording = Recording.beforeRope(decoder, tokens);
      for (int layer = 0; layer < rows.keys.length; layer++) {
        int width = model.geometry().rowSize(layer);
        for (int i = 0; i < tokens.length; i++) {
          int place = places.get(first + i);
          if (place < rows.count) {
            System.arraycopy(recording.rows(layer, Side.KEYS), i * width, rows.keys[layer], place * width, width);
            System.arraycopy(recording.rows(layer, Side.VALUES), i * width, rows.values[layer], place * width, width);
          }
        }
      }
      first += tokens.length;
    }
    return rows;
  }

  /** How many there are. */
  public int count() {
    return count;
  }

  /** All rows of a layer: {@code [count][kvHeads][headDim]}, not copied. */
  public float[] of(int layer, Side side) {
    return (side == Side.KEYS ? keys : values)[layer];
  }
}
