package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import dev.kvasir.Side;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * Codec pattern: a uniform page of what is left of each token when its pattern is taken away, then a label per token.
 *
 * <p>The error bound. With u = 2^-24 and m the token's pattern, the residual r = x - m is rounded once, by at most
 * u |r|; it is stored with the error of {@link UniformReference}; and adding m again rounds by at most u |x'|. In all
 *
 * <pre>    |x - x'| <= step / 2 + u (6.6 range + 2 |lo| + |r| + |x'|)</pre>
 */
final class PatternReference implements ReferenceCodec {

  private static final double U = 0x1p-24;
  private final UniformReference uniform = new UniformReference();

  @Override
  public Set<String> options() {
    return Set.of("group", "grid", "patterns", "metric", "new_patterns", "accept", "alpha", "raw");
  }

  @Override
  public List<Map<String, Double>> variants(Side side, int headDim) {
    List<Map<String, Double>> list = new ArrayList<>();
    list.add(Map.of());
    list.add(Map.of("grid", 0.0));
    list.add(Map.of("group", 32.0, "grid", 1.0));
    list.add(Map.of("patterns", 2.0, "metric", 1.0));
    list.add(Map.of("new_patterns", 0.0, "accept", 0.0, "alpha", 0.0));
    list.add(Map.of("accept", 0.0, "alpha", 0.0, "raw", 0.0));
    if (headDim > 64) {
      list.add(Map.of("group", 64.0, "patterns", 64.0, "alpha", 0.01));
    }
    return list;
  }

  /** A plain one, and such that use patterns whatever they are worth, so that the files hold labels. */
  @Override
  public List<Map<String, Double>> goldenVariants(Side side, int headDim, int bits) {
    return List.of(
        Map.of("grid", 0.0),
        Map.of("grid", 0.0, "patterns", 8.0, "accept", 0.0, "alpha", 0.0),
        Map.of("grid", 1.0, "patterns", 8.0, "accept", 0.0, "alpha", 0.0));
  }

  @Override
  public boolean dependsOnCuts() {
    return true;
  }

  @Override
  public float[] decode(PageShape shape, byte[] page, SideTable.View table) {
    float[] rows = uniform.decode(residualShape(shape), residualBytes(page), table);
    for (int i = 0; i < rows.length; i++) {
      int label = label(page, i / shape.headDim());
      if (label > 0) {
        rows[i] = table.element(label, i % shape.headDim()) + rows[i];
      }
    }
    return rows;
  }

  @Override
  public void check(PageShape shape, float[] rows, byte[] page, SideTable.View table) {
    float[] residuals = rows.clone();
    for (int token = 0; token < PageShape.TOKENS; token++) {
      int label = label(page, token);
      assertTrue(label <= table.labels(), () -> "label " + label + " of " + table.labels());
      for (int channel = 0; channel < shape.headDim(); channel++) {
        residuals[token * shape.headDim() + channel] -= table.element(label, channel);
      }
    }
    byte[] stored = residualBytes(page);
    uniform.check(residualShape(shape), residuals, stored, table);
    float[] kept = uniform.decode(residualShape(shape), stored, table);
    float[] decoded = decode(shape, page, table);
    assertEquals(stored.length + PageShape.TOKENS, page.length, () -> "bytes of " + shape);
    for (int i = 0; i < rows.length; i++) {
      // What the residual lost, which its own check has bounded, and two roundings.
      double lost = Math.abs((double) residuals[i] - kept[i]);
      double bound = lost + U * (Math.abs((double) residuals[i]) + Math.abs((double) decoded[i]));
      if (!(Math.abs((double) rows[i] - decoded[i]) <= bound * (1 + 1e-9))) {
        fail(shape + " element " + i + ": " + rows[i] + " became " + decoded[i] + ", further than " + bound);
      }
    }
  }

  private static int label(byte[] page, int token) {
    return page[page.length - PageShape.TOKENS + token] & 0xFF;
  }

  private static byte[] residualBytes(byte[] page) {
    return Arrays.copyOf(page, page.length - PageShape.TOKENS);
  }

  private static PageShape residualShape(PageShape shape) {
    Map<String, Double> options = new TreeMap<>(shape.options());
    options.keySet().retainAll(Set.of("group", "grid"));
    return new PageShape(shape.side(), shape.headDim(), shape.bits(), options);
  }
}
