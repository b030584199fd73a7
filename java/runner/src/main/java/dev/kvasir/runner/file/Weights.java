package dev.kvasir.runner.file;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * A matrix or vector of weights, as its file has it.
 *
 * @param name what the file calls it
 * @param type how it lies in memory
 * @param rows rows, outermost; 1 for a vector
 * @param width weights of a row, whole blocks of the type
 * @param bytes the weights: a direct buffer at position 0 that nobody writes to
 */
public record Weights(String name, WeightType type, int rows, int width, ByteBuffer bytes) {

  /** Throws ModelException unless the shape is this. */
  public Weights require(int wantedRows, int wantedWidth) throws ModelException {
    if (rows != wantedRows || width != wantedWidth) {
      throw new ModelException(
          name + " is [" + rows + ", " + width + "], not [" + wantedRows + ", " + wantedWidth + "]");
    }
    return this;
  }

  /** A vector's elements. */
  public float[] floats() throws ModelException {
    ByteBuffer in = bytes.duplicate().order(ByteOrder.LITTLE_ENDIAN);
    float[] out = new float[Math.multiplyExact(rows, width)];
    for (int i = 0; i < out.length; i++) {
      switch (type) {
        case F32:
          out[i] = in.getFloat(4 * i);
          break;
        case BF16:
          out[i] = Float.intBitsToFloat(in.getShort(2 * i) << 16);
          break;
        case F16:
          out[i] = half(in.getShort(2 * i));
          break;
        default:
          throw new ModelException(name + " is " + type + "; vectors can be F32, F16 or BF16");
      }
    }
    return out;
  }

  private static float half(short bits) {
    int exponent = bits >> 10 & 31;
    int fraction = bits & 1023;
    float magnitude =
        exponent == 0
            ? fraction * 0x1p-24f
            : exponent == 31
                ? (fraction == 0 ? Float.POSITIVE_INFINITY : Float.NaN)
                : Math.scalb(1024 + fraction, exponent - 25);
    return bits < 0 ? -magnitude : magnitude;
  }

  /** The weights' memory in bytes. */
  public long size() {
    return bytes.capacity();
  }

  @Override
  public boolean equals(Object other) {
    return this == other;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(this);
  }

  @Override
  public String toString() {
    return name + " " + type + Arrays.toString(new int[] {rows, width});
  }
}
