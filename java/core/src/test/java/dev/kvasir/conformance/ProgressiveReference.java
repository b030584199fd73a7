package dev.kvasir.conformance;

import dev.kvasir.Side;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * Codec progressive: pages of codec uniform, with cells unless told otherwise, whose codes are exact quotients, rounded
 * down (cells) or to nearest, ties to even. Computed here in whole numbers, each width for itself.
 */
final class ProgressiveReference implements ReferenceCodec {

  private final UniformReference uniform = new UniformReference(16, ProgressiveReference::code);
  private final UniformReference cut = new UniformReference(16, new Cut(false));
  private final UniformReference moved = new UniformReference(16, new Cut(true));

  /**
   * Levels from end to end with the shifts that are there to be compared with: a page has the upper bits of codes of 16
   * bits. These are half a step of theirs off. Without moves, code c stands for c steps of range / (2^b - 1) from lo on,
   * where the 16-bit code has up to one of these steps less than its upper bits and fraction say, and c leaves the
   * fraction out: a step in either direction. With moves a code stands for the mean of those that it replaces, as
   * elsewhere, and every halving rounds lo and range to float16.
   */
  private record Cut(boolean moves) implements UniformReference.Coder {

    @Override
    public int code(float x, float lo, float range, int levels, boolean cells) {
      return ProgressiveReference.code(x, lo, range, 0xFFFF, cells) >> 16 - Integer.bitCount(levels);
    }

    @Override
    public int[] stored(int lo, int range, int bits) {
      int[] now = {lo, range};
      for (int width = 8; moves && width >= bits; width /= 2) {
        double codes = 1 << width;
        double step = Half.value(now[1]) / (codes * codes - 1);
        now[0] = Half.nearest((float) (Half.value(now[0]) + step * (codes - 1) / 2));
        now[1] = Half.nearest((float) (Half.value(now[1]) * codes / (codes + 1)));
      }
      return now;
    }

    @Override
    public double slack(double lo, double range, int bits) {
      if (bits == 16) {
        return 0;
      }
      if (!moves) {
        return range / ((1 << bits) - 1) / 2 + range / 0xFFFF / 2;
      }
      int halvings = Integer.numberOfTrailingZeros(16 / bits);
      return halvings * (0x1p-11 * 1.01 * (Math.abs(lo) + 2 * range) + 0x1p-24);
    }
  }

  private static int code(float x, float lo, float range, int levels, boolean cells) {
    if (range == 0) {
      return 0;
    }
    // Below 2^41 times 2^16: nothing overflows.
    long scaled = (units(x) - units(lo)) * (cells ? levels + 1 : levels);
    long width = units(range);
    long code = scaled / width;
    long twice = 2 * (scaled % width);
    if (!cells && (twice > width || twice == width && code % 2 == 1)) {
      code++;
    }
    return (int) Math.min(levels, code);
  }

  /** Every float16 value is a whole multiple of 2^-24. */
  private static long units(float half) {
    return (long) (half * 0x1p24);
  }

  @Override
  public Set<String> options() {
    return Set.of("axis", "group", "grid", "floor", "shift");
  }

  /** The floor says how pages change later, and nothing of how they are written. */
  @Override
  public List<Map<String, Double>> variants(Side side, int headDim) {
    return List.of(
        Map.of(),
        Map.of("axis", 1.0, "group", 32.0, "grid", 0.0, "shift", 1.0),
        Map.of("axis", 0.0, "grid", 0.0, "shift", 2.0),
        Map.of("axis", 1.0, "grid", 0.0),
        Map.of("axis", 1.0),
        Map.of("axis", 0.0, "group", 64.0));
  }

  @Override
  public List<Map<String, Double>> goldenVariants(Side side, int headDim, int bits) {
    return List.of(
        Map.of("axis", 0.0, "grid", 0.0),
        Map.of("axis", 0.0, "grid", 1.0),
        Map.of("axis", 1.0, "grid", 0.0),
        Map.of("axis", 1.0, "grid", 1.0));
  }

  @Override
  public float[] decode(PageShape shape, byte[] page, SideTable.View table) {
    return of(shape).decode(layout(shape), page, table);
  }

  @Override
  public void check(PageShape shape, float[] rows, byte[] page, SideTable.View table) {
    of(shape).check(layout(shape), rows, page, table);
  }

  private UniformReference of(PageShape shape) {
    int shift = shape.option("grid", 1) == 1 ? 0 : shape.option("shift", 0);
    return shift == 0 ? uniform : shift == 1 ? cut : moved;
  }

  private static PageShape layout(PageShape shape) {
    Map<String, Double> options = new TreeMap<>(shape.options());
    options.keySet().removeAll(Set.of("floor", "shift"));
    return new PageShape(shape.side(), shape.headDim(), shape.bits(), options);
  }
}
