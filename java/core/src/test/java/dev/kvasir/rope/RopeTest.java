package dev.kvasir.rope;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("jnicheck")
class RopeTest {

  @Test
  void rotatesByItsFrequencies() {
    Random random = new Random(1);
    for (RopePairs pairs : RopePairs.values()) {
      Rope rope = Rope.plain(pairs, 10000, 64);
      float[] rows = new float[3 * 2 * 64 + 5];
      for (int i = 0; i < rows.length; i++) {
        rows[i] = (float) random.nextGaussian();
      }
      float[] rotated = rows.clone();
      rope.rotate(rotated, 3, 2, 999_998);
      for (int t = 0; t < 3; t++) {
        for (int h = 0; h < 2; h++) {
          for (int j = 0; j < 32; j++) {
            double angle = (999_998 + t) * Math.pow(10000, -j / 32.0);
            int first = (t * 2 + h) * 64 + (pairs == RopePairs.HALVES ? j : 2 * j);
            int second = first + (pairs == RopePairs.HALVES ? 32 : 1);
            double x = rows[first];
            double y = rows[second];
            assertEquals(x * Math.cos(angle) - y * Math.sin(angle), rotated[first], 1e-6);
            assertEquals(x * Math.sin(angle) + y * Math.cos(angle), rotated[second], 1e-6);
          }
        }
      }
      // What is no row stays, and turning back restores.
      for (int i = 3 * 2 * 64; i < rows.length; i++) {
        assertEquals(rows[i], rotated[i]);
      }
      rope.rotate(rotated, 1, 2, -999_998);
      for (int i = 0; i < 128; i++) {
        assertEquals(rows[i], rotated[i], 2e-6);
      }
    }
  }

  @Test
  void scalings() {
    Rope plain = Rope.plain(RopePairs.HALVES, 500_000, 128);
    double[] frequencies = plain.frequencies();
    assertEquals(64, frequencies.length);
    assertEquals(1, frequencies[0]);
    assertEquals(Math.pow(500_000, -126 / 128.0), frequencies[63], 1e-18);
    assertArrayEquals(
        java.util.Arrays.stream(frequencies).map(f -> f / 4).toArray(), plain.linear(4).frequencies(), 1e-15);
    double[] llama = plain.llama3(8, 1, 4, 8192).frequencies();
    assertEquals(frequencies[0], llama[0]);
    assertEquals(frequencies[63] / 8, llama[63], 1e-18);
    Rope yarn = Rope.plain(RopePairs.HALVES, 1e6, 128).yarn(4, 32, 1, 32768);
    assertEquals(0.1 * Math.log(4) + 1, yarn.attentionFactor(), 1e-15);
    assertEquals(1, plain.attentionFactor());
    assertEquals(0.5, yarn.attentionFactor(0.5).attentionFactor());
    assertArrayEquals(yarn.frequencies(), yarn.attentionFactor(0.5).frequencies());
    assertNotEquals(yarn, yarn.attentionFactor(0.5));
    for (double wrong : new double[] {0, -1, Double.NaN, Double.POSITIVE_INFINITY}) {
      assertThrows(IllegalArgumentException.class, () -> yarn.attentionFactor(wrong));
    }
    assertEquals(1, yarn.frequencies()[0]);
    assertEquals(plain, Rope.plain(RopePairs.HALVES, 500_000, 128));
    assertEquals(plain.hashCode(), Rope.plain(RopePairs.HALVES, 500_000, 128).hashCode());
    assertNotEquals(plain, plain.linear(2));
    assertTrue(plain.toString().contains("128"));
  }

  @Test
  void refusesNonsense() {
    Rope rope = Rope.plain(RopePairs.HALVES, 10000, 32);
    assertThrows(IllegalArgumentException.class, () -> Rope.plain(RopePairs.HALVES, 1, 32));
    assertThrows(IllegalArgumentException.class, () -> Rope.plain(RopePairs.HALVES, 10000, 33));
    assertThrows(IllegalArgumentException.class, () -> Rope.plain(RopePairs.HALVES, 10000, -2));
    assertThrows(IllegalArgumentException.class, () -> Rope.plain(RopePairs.HALVES, 10000, Integer.MAX_VALUE));
    assertThrows(IllegalArgumentException.class, () -> Rope.plain(RopePairs.HALVES, 10000, Integer.MAX_VALUE - 15));
    assertThrows(IllegalArgumentException.class, () -> rope.linear(0.5));
    assertThrows(IllegalArgumentException.class, () -> rope.llama3(8, 4, 4, 8192));
    assertThrows(IllegalArgumentException.class, () -> rope.yarn(4, 1, 32, 4096));
    assertThrows(IllegalArgumentException.class, () -> rope.rotate(new float[31], 1, 1, 0));
    assertThrows(IllegalArgumentException.class, () -> rope.rotate(new float[32], 0, 1, 0));
    assertThrows(IllegalArgumentException.class, () -> rope.rotate(new float[32], 1 << 30, 1 << 30, 0));
  }
}
