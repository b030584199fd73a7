package dev.kvasir.internal.model;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The door to the native products: values, positions of buffers, refusals. The products' own tests are in C++. */
@Tag("jnicheck")
class MatrixTest {

  private static FloatBuffer direct(float... values) {
    FloatBuffer buffer =
        ByteBuffer.allocateDirect(4 * values.length).order(ByteOrder.nativeOrder()).asFloatBuffer();
    return buffer.put(values).flip();
  }

  private static float[] random(Random random, int count) {
    float[] values = new float[count];
    for (int i = 0; i < count; i++) {
      // Few bits, so that sums are exact in any order and bfloat16 holds them.
      values[i] = random.nextInt(31) - 15;
    }
    return values;
  }

  @Test
  void productsFromPositionsOn() {
    Random random = new Random(5);
    int rows = 5;
    int columns = 9;
    int depth = 37;
    FloatBuffer a = direct(random(random, 3 + rows * depth)).position(3);
    FloatBuffer b = direct(random(random, 2 + columns * depth)).position(2);
    FloatBuffer bias = direct(random(random, 1 + columns)).position(1);
    ShortBuffer bits = ByteBuffer.allocateDirect(2 * b.limit()).order(ByteOrder.nativeOrder()).asShortBuffer();
    for (int i = 0; i < b.limit(); i++) {
      bits.put(i, (short) (Float.floatToRawIntBits(b.get(i)) >> 16));
    }
    bits.position(2);
    FloatBuffer out = direct(new float[4 + rows * columns]).position(4);
    FloatBuffer same = direct(new float[rows * columns]);
    Matrix.product(a, b, bias, rows, columns, depth, out);
    Matrix.product(a, bits, bias, rows, columns, depth, same);
    assertEquals(3, a.position());
    for (int r = 0; r < rows; r++) {
      for (int c = 0; c < columns; c++) {
        double sum = bias.get(1 + c);
        for (int i = 0; i < depth; i++) {
          sum += a.get(3 + r * depth + i) * b.get(2 + c * depth + i);
        }
        assertEquals(sum, out.get(4 + r * columns + c));
        assertEquals(sum, same.get(r * columns + c));
      }
    }
    assertEquals(0, out.get(3));
  }

  @Test
  void siluProduct() {
    FloatBuffer out = direct(new float[2]);
    Matrix.siluProduct(direct(1, -2, 3, 5), 1, 2, out);
    assertEquals(3 / (1 + Math.exp(-1)), out.get(0), 1e-6);
    assertEquals(-10 / (1 + Math.exp(2)), out.get(1), 1e-6);
  }

  @Test
  void refusals() {
    FloatBuffer six = direct(new float[6]);
    FloatBuffer out = direct(new float[9]);
    Class<IllegalArgumentException> refused = IllegalArgumentException.class;
    assertThrows(refused, () -> Matrix.product(six, six, null, 0, 3, 2, out));
    assertThrows(refused, () -> Matrix.product(six, six, null, 4, 3, 2, out));
    assertThrows(refused, () -> Matrix.product(six, six, null, 3, 4, 2, out));
    assertThrows(refused, () -> Matrix.product(six, six, direct(1, 2), 3, 3, 2, out));
    assertThrows(refused, () -> Matrix.product(six, six, null, 3, 3, 2, six));
    assertThrows(refused, () -> Matrix.product(FloatBuffer.allocate(6), six, null, 3, 3, 2, out));
    assertThrows(refused, () -> Matrix.product(six, FloatBuffer.allocate(6), null, 3, 3, 2, out));
    assertThrows(refused, () -> Matrix.product(six, ShortBuffer.allocate(6), null, 3, 3, 2, out));
    assertThrows(refused, () -> Matrix.product(six, six, null, 3, 3, 2, out.asReadOnlyBuffer()));
    assertThrows(refused, () -> Matrix.product(six, six, null, 1 << 20, 1 << 20, 2, out));
    assertThrows(refused, () -> Matrix.siluProduct(six, 2, 2, out));
    assertThrows(refused, () -> Matrix.siluProduct(six, 1, 0, out));
  }
}
