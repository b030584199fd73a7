package dev.kvasir.conformance;

import dev.kvasir.Side;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * Codec progressive: pages of codec uniform, per token unless told otherwise, whose codes are exact quotients rounded
 * to nearest, ties to even. Computed here in decimal fractions of any length, each width for itself.
 */
final class ProgressiveReference implements ReferenceCodec {

  private static final int TOKEN = 1;
  private final UniformReference uniform = new UniformReference(TOKEN, ProgressiveReference::code);

  private static int code(float x, float lo, float range, int levels) {
    if (range == 0) {
      return 0;
    }
    BigDecimal distance = new BigDecimal(x).subtract(new BigDecimal(lo)).multiply(BigDecimal.valueOf(levels));
    return distance.divide(new BigDecimal(range), 0, RoundingMode.HALF_EVEN).intValueExact();
  }

  @Override
  public Set<String> options() {
    return Set.of("axis", "group", "floor", "shift");
  }

  /** Floor and shift say how pages change later, and nothing of how they are written. */
  @Override
  public List<Map<String, Double>> variants(Side side, int headDim) {
    return List.of(
        Map.of(),
        Map.of("group", 32.0, "shift", 1.0),
        Map.of("axis", 0.0, "shift", 2.0),
        Map.of("axis", 0.0, "group", 64.0));
  }

  @Override
  public List<Map<String, Double>> goldenVariants(Side side, int headDim, int bits) {
    return List.of(Map.of(), Map.of("axis", 0.0));
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
