package dev.kvasir.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.kvasir.Side;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Codec f16: the float16 bits of each token row. Loses nothing. */
final class F16Reference implements ReferenceCodec {

  @Override
  public Set<String> options() {
    return Set.of();
  }

  @Override
  public List<Map<String, Double>> variants(Side side, int headDim) {
    return List.of(Map.of());
  }

  @Override
  public float[] decode(PageShape shape, byte[] page, SideTable.View table) {
    float[] rows = new float[PageShape.TOKENS * shape.headDim()];
    for (int i = 0; i < rows.length; i++) {
      rows[i] = (float) Half.value(page[2 * i] & 0xFF | (page[2 * i + 1] & 0xFF) << 8);
    }
    return rows;
  }

  @Override
  public void check(PageShape shape, float[] rows, byte[] page, SideTable.View table) {
    assertEquals(2 * rows.length, page.length, () -> "bytes of " + shape);
    float[] decoded = decode(shape, page, table);
    for (int i = 0; i < rows.length; i++) {
      // As bits: the sign of a zero is kept too.
      assertEquals(Float.floatToRawIntBits(rows[i]), Float.floatToRawIntBits(decoded[i]), "f16 element");
    }
  }
}
