package dev.kvasir.tensor;

import dev.kvasir.internal.json.Json;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;
import java.util.Objects;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.jspecify.annotations.Nullable;

/** A tensor in memory: type, shape and row-major elements. Immutable, at most 2 GiB. */
public final class Tensor {

  private final TensorType type;
  private final List<Long> shape;
  private final ByteBuffer data;

  /** Takes the bytes as they are; the caller must not change them. */
  Tensor(TensorType type, List<Long> shape, byte[] bytes) {
    long needed = byteCount(type, shape);
    if (needed != bytes.length) {
      throw new IllegalArgumentException(type + " " + shown(shape) + " needs " + needed + " bytes, not " + bytes.length);
    }
    this.type = type;
    this.shape = List.copyOf(shape);
    this.data = ByteBuffer.wrap(bytes).asReadOnlyBuffer();
  }

  /**
   * A tensor of type {@link TensorType#F32}.
   *
   * @param values the elements, row-major; copied
   * @param shape the sizes of its dimensions; none for a single number
   * @return the tensor
   * @throws IllegalArgumentException if the shape does not have as many elements
   */
  public static Tensor ofFloats(float[] values, long... shape) {
    ByteBuffer bytes = allocate(values.length, Float.BYTES);
    bytes.asFloatBuffer().put(values);
    return new Tensor(TensorType.F32, list(shape), bytes.array());
  }

  /**
   * A tensor of type {@link TensorType#F64}.
   *
   * @param values the elements, row-major; copied
   * @param shape the sizes of its dimensions; none for a single number
   * @return the tensor
   * @throws IllegalArgumentException if the shape does not have as many elements
   */
  public static Tensor ofDoubles(double[] values, long... shape) {
    ByteBuffer bytes = allocate(values.length, Double.BYTES);
    bytes.asDoubleBuffer().put(values);
    return new Tensor(TensorType.F64, list(shape), bytes.array());
  }

  /**
   * A tensor of type {@link TensorType#I32}.
   *
   * @param values the elements, row-major; copied
   * @param shape the sizes of its dimensions; none for a single number
   * @return the tensor
   * @throws IllegalArgumentException if the shape does not have as many elements
   */
  public static Tensor ofInts(int[] values, long... shape) {
    ByteBuffer bytes = allocate(values.length, Integer.BYTES);
    bytes.asIntBuffer().put(values);
    return new Tensor(TensorType.I32, list(shape), bytes.array());
  }

  /**
   * A tensor of any type from its bytes.
   *
   * @param type the type of the elements
   * @param bytes the elements, row-major and little-endian; copied
   * @param shape the sizes of its dimensions; none for a single number
   * @return the tensor
   * @throws IllegalArgumentException if the shape does not have as many bytes
   */
  public static Tensor ofBytes(TensorType type, byte[] bytes, long... shape) {
    return new Tensor(type, list(shape), bytes.clone());
  }

  /**
   * The type of the elements.
   *
   * @return the type
   */
  public TensorType type() {
    return type;
  }

  /**
   * The sizes of the dimensions, outermost first; empty for a single number.
   *
   * @return the shape
   */
  public List<Long> shape() {
    return shape;
  }

  /**
   * The number of elements.
   *
   * @return 0 or more
   */
  public int elements() {
    return data.capacity() / type.bytes();
  }

  /**
   * The bytes: row-major, little-endian.
   *
   * @return a read-only view of its own position and limit
   */
  public ByteBuffer data() {
    return data.duplicate().order(ByteOrder.LITTLE_ENDIAN);
  }

  /**
   * The elements as floats. 64-bit elements are rounded.
   *
   * @return a new array
   * @throws IllegalStateException for a type without a meaning as a number: U64 and the 8-bit floats
   */
  public float[] toFloats() {
    float[] result = new float[elements()];
    ByteBuffer bytes = data();
    switch (type) {
      case F32:
        bytes.asFloatBuffer().get(result);
        break;
      case F16:
        for (int i = 0; i < result.length; i++) {
          result[i] = float16(bytes.getShort(2 * i));
        }
        break;
      case BF16:
        for (int i = 0; i < result.length; i++) {
          result[i] = Float.intBitsToFloat(bytes.getShort(2 * i) << 16);
        }
        break;
      default:
        for (int i = 0; i < result.length; i++) {
          result[i] = (float) number(bytes, i);
        }
    }
    return result;
  }

  /**
   * The elements as doubles. 64-bit integers beyond 2^53 are rounded.
   *
   * @return a new array
   * @throws IllegalStateException for a type without a meaning as a number: U64 and the 8-bit floats
   */
  public double[] toDoubles() {
    double[] result = new double[elements()];
    ByteBuffer bytes = data();
    for (int i = 0; i < result.length; i++) {
      result[i] = number(bytes, i);
    }
    return result;
  }

  /**
   * The elements as integers.
   *
   * @return a new array
   * @throws IllegalStateException if the type is none of the integer types up to 32 bits, I64 or BOOL, or an element
   *     does not fit
   */
  public int[] toInts() {
    int[] result = new int[elements()];
    ByteBuffer bytes = data();
    for (int i = 0; i < result.length; i++) {
      long value = integer(bytes, i);
      if (value != (int) value) {
        throw new IllegalStateException("element " + i + " is " + value + ", which fits no int");
      }
      result[i] = (int) value;
    }
    return result;
  }

  @Override
  public boolean equals(@Nullable Object other) {
    return other instanceof Tensor that && type == that.type && shape.equals(that.shape) && data.equals(that.data);
  }

  @Override
  public int hashCode() {
    return Objects.hash(type, shape, data);
  }

  @Override
  public String toString() {
    return "Tensor[" + type + " " + shown(shape) + "]";
  }

  /** Bytes of a tensor. Throws IllegalArgumentException for a negative size or a product that fits no long. */
  static long byteCount(TensorType type, List<Long> shape) {
    long bytes = type.bytes();
    boolean empty = false;
    for (long size : shape) {
      if (size < 0) {
        throw new IllegalArgumentException("a dimension of size " + size + " in the shape " + shown(shape));
      }
      empty |= size == 0;
    }
    for (long size : shape) {
      try {
        bytes = empty ? 0 : Math.multiplyExact(bytes, size);
      } catch (ArithmeticException e) {
        throw new IllegalArgumentException("the shape " + shown(shape) + " has more elements than any file", e);
      }
    }
    return bytes;
  }

  static float float16(short bits) {
    int sign = (bits & 0x8000) << 16;
    int exponent = bits >> 10 & 31;
    int fraction = bits & 1023;
    if (exponent == 0) {
      float magnitude = fraction * 0x1p-24f;
      return sign == 0 ? magnitude : -magnitude;
    }
    int wide = exponent == 31 ? 255 : exponent + 112;
    return Float.intBitsToFloat(sign | wide << 23 | fraction << 13);
  }

  private double number(ByteBuffer bytes, int i) {
    switch (type) {
      case F64:
        return bytes.getDouble(8 * i);
      case F32:
        return bytes.getFloat(4 * i);
      case F16:
        return float16(bytes.getShort(2 * i));
      case BF16:
        return Float.intBitsToFloat(bytes.getShort(2 * i) << 16);
      default:
        return integer(bytes, i);
    }
  }

  private long integer(ByteBuffer bytes, int i) {
    switch (type) {
      case I64:
        return bytes.getLong(8 * i);
      case I32:
        return bytes.getInt(4 * i);
      case U32:
        return bytes.getInt(4 * i) & 0xFFFF_FFFFL;
      case I16:
        return bytes.getShort(2 * i);
      case U16:
        return bytes.getShort(2 * i) & 0xFFFF;
      case I8:
        return bytes.get(i);
      case U8:
      case BOOL:
        return bytes.get(i) & 0xFF;
      default:
        throw new IllegalStateException("elements of type " + type + " are not read as these numbers");
    }
  }

  private static ByteBuffer allocate(int elements, int bytes) {
    try {
      return ByteBuffer.allocate(Math.multiplyExact(elements, bytes)).order(ByteOrder.LITTLE_ENDIAN);
    } catch (ArithmeticException e) {
      throw new IllegalArgumentException(elements + " elements of " + bytes + " bytes are more than 2 GiB", e);
    }
  }

  private static List<Long> list(long[] shape) {
    return LongStream.of(shape).boxed().collect(Collectors.toUnmodifiableList());
  }

  /** Files can have shapes of any length, messages not. */
  private static String shown(List<Long> shape) {
    return Json.abbreviate(shape.toString());
  }
}
