package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.Side;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;

/**
 * Codec tiered: channels of 16, 4 or 2 bits, chosen by their saliency. Quantised channels keep to the bound of {@link
 * UniformReference}; those of 16 bits are exact.
 */
final class TieredReference implements ReferenceCodec {

  private static final int[] WIDTHS = {16, 4, 2};

  @Override
  public Set<String> options() {
    return Set.of("mode", "tau16", "tau4", "key_bits", "queries", "grid", "group", "parameter_bits");
  }

  @Override
  public List<Map<String, Double>> variants(Side side, int headDim) {
    if (side == Side.VALUES) {
      return List.of();
    }
    return List.of(
        Map.of(),
        Map.of("grid", 0.0),
        Map.of("tau16", 1.05, "tau4", 0.98, "group", 64.0),
        Map.of("mode", 1.0, "tau16", 5.0, "tau4", 1.5, "queries", 0.0, "group", 128.0),
        Map.of("mode", 1.0, "tau16", 0.0, "tau4", 0.0),
        Map.of("mode", 2.0, "key_bits", 2.7),
        Map.of("mode", 2.0, "key_bits", 2.7, "parameter_bits", 8.0),
        Map.of("grid", 0.0, "group", 64.0, "parameter_bits", 8.0));
  }

  @Override
  public List<Map<String, Double>> goldenVariants(Side side, int headDim, int bits) {
    return List.of(
        Map.of("grid", 0.0),
        Map.of("grid", 0.0, "mode", 2.0, "key_bits", 5.0),
        Map.of("grid", 0.0, "mode", 2.0, "key_bits", 3.0, "group", 128.0),
        Map.of("grid", 1.0),
        Map.of("grid", 1.0, "mode", 2.0, "key_bits", 3.0, "group", 128.0));
  }

  @Override
  public boolean dependsOnQueries() {
    return true;
  }

  @Override
  public float[] decode(PageShape shape, byte[] page, SideTable.View table) {
    Part part = new Part(shape, page);
    float[] rows = new float[PageShape.TOKENS * part.d];
    for (int tier = 0; tier < WIDTHS.length; tier++) {
      for (int i = 0; i < part.count(tier); i++) {
        float[] column = part.column(tier, i);
        for (int token = 0; token < PageShape.TOKENS; token++) {
          rows[token * part.d + part.channel(tier, i)] = column[token];
        }
      }
    }
    return rows;
  }

  @Override
  public void check(PageShape shape, float[] rows, byte[] page, SideTable.View table) {
    Part part = new Part(shape, page);
    assertEquals(part.size(), page.length, () -> "bytes of " + shape);
    checkChannels(part);
    int[] widths = new int[part.d];
    for (int tier = 0; tier < WIDTHS.length; tier++) {
      for (int i = 0; i < part.count(tier); i++) {
        widths[part.channel(tier, i)] = WIDTHS[tier];
      }
    }
    assertArrayEquals(choose(shape, rows), widths, () -> "widths of " + shape);
    Part prescribed = new Part(shape, Arrays.copyOf(Arrays.copyOf(page, 4 + part.d), page.length));
    for (int tier = 0; tier < WIDTHS.length; tier++) {
      for (int i = 0; i < part.count(tier); i++) {
        float[] column = new float[PageShape.TOKENS];
        for (int token = 0; token < PageShape.TOKENS; token++) {
          column[token] = rows[token * part.d + part.channel(tier, i)];
        }
        prescribed.store(tier, i, column);
        if (tier == 0) {
          assertArrayEquals(column, part.column(tier, i), () -> "16-bit channels are exact, " + shape);
        } else {
          checkDistances(part, tier, i, column);
        }
      }
    }
    assertArrayEquals(prescribed.bytes, page, () -> "page bytes of " + shape);
  }

  /** A permutation, ascending within each tier; whole vectors of 4-bit channels. */
  private static void checkChannels(Part part) {
    boolean[] seen = new boolean[part.d];
    for (int tier = 0; tier < WIDTHS.length; tier++) {
      for (int i = 0; i < part.count(tier); i++) {
        assertTrue(i == 0 || part.channel(tier, i) > part.channel(tier, i - 1), "channels of a tier ascend");
        seen[part.channel(tier, i)] = true;
      }
    }
    for (boolean each : seen) {
      assertTrue(each, "every channel has a place");
    }
    assertTrue(part.count(1) % 4 == 0 || part.count(2) == 0, "4-bit channels come in fours");
  }

  /** The bound of {@link UniformReference}, and what a range falls short of. */
  private static void checkDistances(Part part, int tier, int i, float[] column) {
    float[] decoded = part.column(tier, i);
    for (int token = 0; token < PageShape.TOKENS; token++) {
      double range = part.range(part.place(tier, i), token);
      double lo = part.lo(part.place(tier, i), token);
      // The widest range of 8 bits may end before the highest elements do; codes do, too.
      double beyond = Math.max(0, column[token] - (lo + range));
      double bound =
          range == 0 ? 0 : range / part.steps(tier) / 2 + beyond + 0x1p-24 * (6.6 * range + 2 * Math.abs(lo));
      double distance = Math.abs((double) column[token] - decoded[token]);
      assertTrue(distance <= bound, () -> column[0] + " is off by " + distance + ", more than " + bound);
    }
  }

  /** The width of each channel, from rows that no query has looked at. */
  private static int[] choose(PageShape shape, float[] rows) {
    int d = shape.headDim();
    float[] saliency = new float[d];
    for (int c = 0; c < d; c++) {
      float low = rows[c];
      float high = rows[c];
      for (int token = 1; token < PageShape.TOKENS; token++) {
        low = Math.min(low, rows[token * d + c]);
        high = Math.max(high, rows[token * d + c]);
      }
      saliency[c] = (high - low) / 3f;
    }
    int[] widths = new int[d];
    if (shape.option("mode", 0) == 2) {
      chooseByBudget(shape, saliency, widths);
    } else {
      double unit = 1;
      if (shape.option("mode", 0) == 0) {
        double sum = 0;
        for (float each : saliency) {
          sum += each;
        }
        unit = sum / d;
      }
      cut(saliency, number(shape, "tau16", 1.44) * unit, number(shape, "tau4", 0.79) * unit, widths);
    }
    while (count(widths, 4) % 4 != 0 && count(widths, 2) > 0) {
      widths[best(saliency, widths, 2)] = 4;
    }
    return widths;
  }

  private static void chooseByBudget(PageShape shape, float[] saliency, int[] widths) {
    float target = number(shape, "key_bits", 2.7) * shape.headDim();
    // Non-negative floats are ordered as their bits are: the least limit that keeps to the target, by bisection.
    int low = 0;
    int high = Float.floatToIntBits(Float.POSITIVE_INFINITY);
    while (low < high) {
      int middle = low + (high - low) / 2;
      float limit = Float.intBitsToFloat(middle);
      cut(saliency, 12f * limit, limit, widths);
      if (IntStream.of(widths).sum() <= target) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    float limit = Float.intBitsToFloat(low);
    cut(saliency, 12f * limit, limit, widths);
    while (count(widths, 2) > 0
        && IntStream.of(widths).sum() + 2 <= target
        && saliency[best(saliency, widths, 2)] > 0) {
      widths[best(saliency, widths, 2)] = 4;
    }
    if (count(widths, 2) == 0) {
      if (count(widths, 4) > 0 && IntStream.of(widths).sum() + 6 <= target) {
        widths[best(saliency, widths, 4)] = 16;
      }
    } else if (count(widths, 4) % 4 == 1) {
      int least = -1;
      for (int c = 0; c < widths.length; c++) {
        if (widths[c] == 4 && (least < 0 || saliency[c] < saliency[least])) {
          least = c;
        }
      }
      widths[least] = 2;
    }
  }

  private static void cut(float[] saliency, double limit16, double limit4, int[] widths) {
    for (int c = 0; c < widths.length; c++) {
      widths[c] = saliency[c] > limit16 ? 16 : saliency[c] > limit4 ? 4 : 2;
    }
  }

  private static int best(float[] saliency, int[] widths, int width) {
    int best = -1;
    for (int c = 0; c < widths.length; c++) {
      if (widths[c] == width && (best < 0 || saliency[c] > saliency[best])) {
        best = c;
      }
    }
    return best;
  }

  private static int count(int[] widths, int width) {
    return (int) IntStream.of(widths).filter(each -> each == width).count();
  }

  private static float number(PageShape shape, String name, double otherwise) {
    return shape.options().getOrDefault(name, otherwise).floatValue();
  }

  /** The bytes of a part, by place. Tiers are numbered 0, 1, 2 for 16, 4 and 2 bits. */
  private static final class Part {
    final byte[] bytes;
    final int d;
    private final int group;
    private final int size; // bytes of a parameter
    private final boolean cells; // of 2-bit codes
    private final int[] counts;

    Part(PageShape shape, byte[] bytes) {
      this.bytes = bytes;
      d = shape.headDim();
      group = shape.option("group", 32);
      size = shape.option("parameter_bits", 16) / 8;
      cells = shape.option("grid", 1) == 1;
      counts = new int[] {load16(0), load16(2), d - load16(0) - load16(2)};
    }

    int count(int tier) {
      return counts[tier];
    }

    int channel(int tier, int i) {
      int before = tier == 0 ? 0 : tier == 1 ? counts[0] : counts[0] + counts[1];
      return bytes[4 + before + i] & 0xFF;
    }

    int size() {
      return planeOffset(2) + padded(counts[2]) * 32;
    }

    /** The number of a channel's column. */
    int place(int tier, int i) {
      return tier == 1 ? i : padded(counts[1]) + i;
    }

    int loOffset(int column, int token) {
      return 4 + d + token / group * 2 * size * columns() + size * column;
    }

    int rangeOffset(int column, int token) {
      return loOffset(column, token) + size * columns();
    }

    double range(int column, int token) {
      int at = rangeOffset(column, token);
      return Half.value(size == 2 ? load16(at) : Math.min(bytes[at] & 0xFF, 247) << 7);
    }

    double lo(int column, int token) {
      int at = loOffset(column, token);
      return size == 2 ? Half.value(load16(at)) : Math.max(-65504, Math.min(65504, bytes[at] * range(column, token) / 16));
    }

    private void storeParameters(int column, int token, double low, double high) {
      if (size == 2) {
        int lo = Half.down((float) low + 0.0f);
        store16(loOffset(column, token), lo);
        store16(rangeOffset(column, token), Half.up(high - Half.value(lo)));
        return;
      }
      // The least range that reaches the highest element from the greatest lo that is not above the lowest.
      for (int range = 0; range <= 247; range++) {
        double step = Half.value(range << 7) / 16;
        int lo = step == 0 ? 0 : (int) Math.min(127, Math.floor(low / step));
        bytes[rangeOffset(column, token)] = (byte) range;
        bytes[loOffset(column, token)] = (byte) lo;
        double least = Math.max(-65504, lo * step);
        if (lo >= -128 && least <= low && least + 16 * step >= high) {
          return;
        }
      }
    }

    float[] column(int tier, int i) {
      float[] column = new float[PageShape.TOKENS];
      for (int token = 0; token < PageShape.TOKENS; token++) {
        if (tier == 0) {
          column[token] = (float) Half.value(load16(valuesOffset() + 256 * i + 2 * token));
        } else {
          int code = bytes[codeOffset(tier, i, token)] >> shift(tier, token) & (1 << WIDTHS[tier]) - 1;
          float range = (float) range(place(tier, i), token);
          float step = range / (float) steps(tier);
          float lo = (float) lo(place(tier, i), token);
          float base = cells(tier) ? lo + step / 2 : lo;
          column[token] = base + (float) code * step;
        }
      }
      return column;
    }

    private boolean cells(int tier) {
      return cells && WIDTHS[tier] == 2;
    }

    private int steps(int tier) {
      return (1 << WIDTHS[tier]) - (cells(tier) ? 0 : 1);
    }

    /** Writes what the format prescribes for a channel. */
    void store(int tier, int i, float[] column) {
      for (int first = 0; first < PageShape.TOKENS; first += tier == 0 ? 1 : group) {
        if (tier == 0) {
          store16(valuesOffset() + 256 * i + 2 * first, Half.nearest(column[first]));
          continue;
        }
        float low = Float.POSITIVE_INFINITY;
        float high = Float.NEGATIVE_INFINITY;
        for (int token = first; token < first + group; token++) {
          low = Math.min(low, column[token]);
          high = Math.max(high, column[token]);
        }
        storeParameters(place(tier, i), first, low, high);
        float lo = (float) lo(place(tier, i), first);
        float range = (float) range(place(tier, i), first);
        int levels = (1 << WIDTHS[tier]) - 1;
        float inverse = range > 0 ? (float) steps(tier) / range : 0;
        for (int token = first; token < first + group; token++) {
          float scaled = (column[token] - lo) * inverse;
          int code = Math.min(levels, (int) (cells(tier) ? Math.floor(scaled) : Math.rint(scaled)));
          bytes[codeOffset(tier, i, token)] |= (byte) (code << shift(tier, token));
        }
      }
    }

    int load16(int offset) {
      return bytes[offset] & 0xFF | (bytes[offset + 1] & 0xFF) << 8;
    }

    private void store16(int offset, int value) {
      bytes[offset] = (byte) value;
      bytes[offset + 1] = (byte) (value >> 8);
    }

    private int padded(int count) {
      return (count + 3) / 4 * 4;
    }

    private int columns() {
      return padded(counts[1]) + padded(counts[2]);
    }

    private int valuesOffset() {
      return (4 + d + PageShape.TOKENS / group * 2 * size * columns() + 63) / 64 * 64;
    }

    private int planeOffset(int tier) {
      int wide = valuesOffset() + 256 * counts[0];
      return tier == 1 ? wide : wide + padded(counts[1]) * 64;
    }

    /** Tokens that a vector of a tier's plane covers. */
    private int tokensOf(int tier) {
      return 128 / WIDTHS[tier];
    }

    private int codeOffset(int tier, int i, int token) {
      int vector = token / tokensOf(tier) * (padded(counts[tier]) / 4) + i / 4;
      return planeOffset(tier) + 64 * vector + 4 * (token % 16) + i % 4;
    }

    private int shift(int tier, int token) {
      return token % tokensOf(tier) / 16 * WIDTHS[tier];
    }
  }
}
