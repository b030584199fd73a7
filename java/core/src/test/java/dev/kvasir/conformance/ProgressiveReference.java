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

  /** Floor and shift say how pages change later, and nothing of how they are written. */
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
    return uniform.decode(layout(shape), page, table);
  }

  @Override
  public void check(PageShape shape, float[] rows, byte[] page, SideTable.View table) {
    uniform.check(layout(shape), rows, page, table);
  }

  private static PageShape layout(PageShape shape) {
    Map<String, Double> options = new TreeMap<>(shape.options());
    options.keySet().removeAll(Set.of("floor", "shift"));
    return new PageShape(shape.side(), shape.headDim(), shape.bits(), options);
  }
}
