package dev.kvasir;

import static dev.kvasir.Testing.assertNames;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class KvGeometryTest {

  private static KvGeometry.Builder complete() {
    return KvGeometry.builder().layers(3).queryHeads(8).kvHeads(2).headDim(64);
  }

  private static void assertRefused(Executable call, Object... named) {
    assertNames(assertThrows(IllegalArgumentException.class, call), named);
  }

  @Test
  void settingsHoldForEveryLayer() {
    KvGeometry g = complete().slidingWindow(100).softmaxScale(0.5f).build();
    assertEquals(3, g.layers());
    for (int layer = 0; layer < 3; layer++) {
      assertEquals(8, g.queryHeads(layer));
      assertEquals(2, g.kvHeads(layer));
      assertEquals(64, g.headDim(layer));
      assertEquals(100, g.slidingWindow(layer));
      assertEquals(0.5f, g.softmaxScale(layer));
      assertEquals(128, g.rowSize(layer));
      assertEquals(512, g.querySize(layer));
    }
  }

  @Test
  void defaults() {
    KvGeometry g = complete().build();
    assertEquals(0, g.slidingWindow(0));
    assertEquals(0.125f, g.softmaxScale(0));
  }

  @Test
  void layersMayDiffer() {
    KvGeometry g =
        KvGeometry.builder()
            .headDim(1, 96) // before the common value: the order does not matter
            .layers(3)
            .queryHeads(8)
            .kvHeads(2)
            .headDim(64)
            .queryHeads(1, 12)
            .kvHeads(1, 4)
            .slidingWindow(2, 4096)
            .softmaxScale(2, 1f)
            .build();
    assertEquals(64, g.headDim(0));
    assertEquals(96, g.headDim(1));
    assertEquals(12, g.queryHeads(1));
    assertEquals(4, g.kvHeads(1));
    assertEquals(0, g.slidingWindow(1));
    assertEquals(4096, g.slidingWindow(2));
    assertEquals(1f, g.softmaxScale(2));
    assertEquals((float) (1 / Math.sqrt(96)), g.softmaxScale(1));
  }

  @Test
  void isAValue() {
    assertEquals(complete().build(), complete().build());
    assertEquals(complete().build().hashCode(), complete().build().hashCode());
    assertNotEquals(complete().build(), complete().headDim(1, 32).build());
    assertNames(new Exception(complete().build().toString()), 3, 8, 64);
  }

  @Test
  void aBuiltGeometryDoesNotFollowItsBuilder() {
    KvGeometry.Builder builder = complete();
    KvGeometry g = builder.build();
    builder.headDim(128).kvHeads(0, 4);
    assertEquals(64, g.headDim(0));
    assertEquals(2, g.kvHeads(0));
  }

  @Test
  void refusesWhatNoCacheCouldHold() {
    for (int layers : new int[] {0, -1, 4097, Integer.MAX_VALUE, Integer.MIN_VALUE}) {
      assertRefused(() -> KvGeometry.builder().layers(layers), "layers", layers);
    }
    for (int heads : new int[] {0, -8, 4097, Integer.MAX_VALUE}) {
      assertRefused(() -> complete().queryHeads(heads), "queryHeads", heads);
      assertRefused(() -> complete().kvHeads(1, heads), "kvHeads", heads);
    }
    for (int dim : new int[] {0, -32, 16, 40, 257, 272, Integer.MAX_VALUE}) {
      assertRefused(() -> complete().headDim(dim), "headDim", dim);
      assertRefused(() -> complete().headDim(2, dim), "headDim", dim);
    }
    assertRefused(() -> complete().slidingWindow(-1), "slidingWindow", -1);
    for (float scale : new float[] {0, -1, Float.NaN, Float.POSITIVE_INFINITY}) {
      assertRefused(() -> complete().softmaxScale(scale), "softmaxScale", scale);
    }
  }

  @Test
  void refusesWhatDoesNotFitTogether() {
    assertRefused(() -> complete().kvHeads(3).build(), 8, 3);
    assertRefused(() -> complete().queryHeads(2, 9).build(), "layer 2", 9);
    assertRefused(() -> complete().headDim(3, 64).build(), "layer 3");
    assertRefused(() -> complete().headDim(-1, 64), -1);
  }

  @Test
  void refusesGaps() {
    assertRefused(() -> KvGeometry.builder().queryHeads(8).kvHeads(2).headDim(64).build(), "layers");
    assertRefused(() -> KvGeometry.builder().layers(1).kvHeads(2).headDim(64).build(), "queryHeads");
    assertRefused(() -> KvGeometry.builder().layers(1).queryHeads(8).headDim(64).build(), "kvHeads");
    assertRefused(() -> KvGeometry.builder().layers(2).queryHeads(8).kvHeads(2).headDim(0, 64).build(), "layer 1");
  }

  @Test
  void refusesLayersOutOfRange() {
    KvGeometry g = complete().build();
    for (int layer : new int[] {-1, 3, Integer.MAX_VALUE, Integer.MIN_VALUE}) {
      assertRefused(() -> g.headDim(layer), layer, "of 3");
      assertRefused(() -> g.rowSize(layer), layer, "of 3");
    }
  }
}
