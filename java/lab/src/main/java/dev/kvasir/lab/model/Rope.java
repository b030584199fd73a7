package dev.kvasir.lab.model;

import dev.kvasir.lab.Json;
import dev.kvasir.rope.RopePairs;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * The rotary embedding in the "rotate half" style: channels {@code j} and {@code j + headDim / 2} turn together by
 * {@code position * frequency[j]}.
 */
public final class Rope {

  private final dev.kvasir.rope.Rope rope;
  private final double[] frequencies;
  /** cos and sin of each position so far: {@code [positions][2][headDim / 2]}. */
  private volatile float[] table = new float[0];

  private Rope(dev.kvasir.rope.Rope rope) {
    this.rope = rope;
    this.frequencies = rope.frequencies();
  }

  /** The same, for methods that apply it themselves. */
  public dev.kvasir.rope.Rope forCache() {
    return rope;
  }

  /** The embedding that a config.json describes: plain, linear or llama3 scaling. */
  static Rope of(Json config, int headDim, Path file) throws ModelException {
    // Newer files gather everything in rope_parameters.
    Json scaling = config.find("rope_parameters").or(() -> config.find("rope_scaling")).orElse(null);
    double base = config.find("rope_theta").map(Json::number).orElse(10000.0);
    if (scaling != null) {
      base = scaling.find("rope_theta").map(Json::number).orElse(base);
    }
    dev.kvasir.rope.Rope plain = dev.kvasir.rope.Rope.plain(RopePairs.HALVES, base, headDim);
    String type =
        scaling == null
            ? "default"
            : scaling.find("rope_type").or(() -> scaling.find("type")).map(Json::text).orElse("default");
    switch (type) {
      case "default":
        return new Rope(plain);
      case "linear":
        return new Rope(plain.linear(scaling.get("factor").number()));
      case "llama3":
        return new Rope(
            plain.llama3(
                scaling.get("factor").number(),
                scaling.get("low_freq_factor").number(),
                scaling.get("high_freq_factor").number(),
                scaling.get("original_max_position_embeddings").number()));
      default:
        throw new ModelException(file + ": rope scaling is \"" + type + "\"; default, linear and llama3 can be run");
    }
  }

  /** Radians per position of each pair of channels. */
  public double[] frequencies() {
    return frequencies.clone();
  }

  /** Makes positions up to {@code last} ready. */
  synchronized void prepare(int last) {
    int half = frequencies.length;
    int known = table.length / (2 * half);
    if (last < known) {
      return;
    }
    int wanted = Math.max(last + 1, 2 * known);
    float[] longer = Arrays.copyOf(table, wanted * 2 * half);
    for (int position = known; position < wanted; position++) {
      for (int j = 0; j < half; j++) {
        double angle = position * frequencies[j];
        longer[position * 2 * half + j] = (float) Math.cos(angle);
        longer[position * 2 * half + half + j] = (float) Math.sin(angle);
      }
    }
    table = longer;
  }

  /** Turns {@code heads} heads of one token, at {@code from} in the array, to a position that was prepared. */
  void turn(float[] rows, int from, int heads, int position) {
    float[] known = table;
    int half = frequencies.length;
    int cos = position * 2 * half;
    int sin = cos + half;
    for (int head = 0; head < heads; head++) {
      int a = from + head * 2 * half;
      int b = a + half;
      for (int j = 0; j < half; j++) {
        float x = rows[a + j];
        float y = rows[b + j];
        rows[a + j] = x * known[cos + j] - y * known[sin + j];
        rows[b + j] = y * known[cos + j] + x * known[sin + j];
      }
    }
  }
}
