package dev.kvasir.codebook;

import dev.kvasir.KvGeometry;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Checks;
import dev.kvasir.rope.RopePairs;
import dev.kvasir.tensor.Tensor;
import dev.kvasir.tensor.TensorType;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/** Codebooks as named tensors; {@link CommVqCodebooks} says which. Reading throws IllegalArgumentException. */
final class CodebookTensors {

  static final String PREFIX = "commvq.";

  private static final String KEY_TABLES = "key_tables";
  private static final String KEY_PAIRS = "key_pairs";
  private static final String VALUE_TABLE = "value_table";
  private static final String VALUE_THRESHOLDS = "value_thresholds";
  private static final List<String> ENCODER =
      List.of(
          "encoder.scale",
          "encoder.norm.weight",
          "encoder.norm.bias",
          "encoder.first.weight",
          "encoder.first.bias",
          "encoder.second.weight",
          "encoder.second.bias");

  private CodebookTensors() {}

  // Writing ----------------------------------------------------------------------------------------------------------

  static Map<String, Tensor> write(CommVqCodebooks codebooks) {
    Map<String, Tensor> tensors = new TreeMap<>();
    for (int i = 0; i < codebooks.geometry().layers(); i++) {
      String layer = PREFIX + i + ".";
      codebooks.keys(i).ifPresent(keys -> write(keys, layer, tensors));
      codebooks.values(i).ifPresent(values -> write(values, layer, tensors));
      codebooks.encoder(i).ifPresent(encoder -> write(encoder, layer, tensors));
    }
    return tensors;
  }

  private static void write(KeyCodebook keys, String layer, Map<String, Tensor> tensors) {
    tensors.put(
        layer + KEY_TABLES, halves(keys.tables(), keys.kvHeads(), keys.stages(), keys.entries(), keys.headDim()));
    tensors.put(layer + KEY_PAIRS, Tensor.ofInts(new int[] {keys.pairs().code()}));
  }

  private static void write(ValueCodebook values, String layer, Map<String, Tensor> tensors) {
    tensors.put(layer + VALUE_TABLE, halves(values.table(), values.codes(), values.width()));
    tensors.put(layer + VALUE_THRESHOLDS, Tensor.ofFloats(values.thresholds(), values.codes()));
  }

  private static void write(ValueEncoder encoder, String layer, Map<String, Tensor> tensors) {
    ValueEncoder.Weights weights = encoder.weights();
    int width = encoder.width();
    int hidden = encoder.hidden();
    int outputs = 2 * encoder.codes();
    tensors.put(layer + ENCODER.get(0), Tensor.ofFloats(weights.scale(), width));
    tensors.put(layer + ENCODER.get(1), Tensor.ofFloats(weights.normWeight(), width));
    tensors.put(layer + ENCODER.get(2), Tensor.ofFloats(weights.normBias(), width));
    tensors.put(layer + ENCODER.get(3), Tensor.ofFloats(weights.firstWeight(), hidden, width));
    tensors.put(layer + ENCODER.get(4), Tensor.ofFloats(weights.firstBias(), hidden));
    tensors.put(layer + ENCODER.get(5), Tensor.ofFloats(weights.secondWeight(), outputs, hidden));
    tensors.put(layer + ENCODER.get(6), Tensor.ofFloats(weights.secondBias(), outputs));
  }

  private static Tensor halves(float[] values, long... shape) {
    ByteBuffer bytes = ByteBuffer.allocate(2 * values.length).order(ByteOrder.LITTLE_ENDIAN);
    for (float value : values) {
      bytes.putShort(half(value));
    }
    return Tensor.ofBytes(TensorType.F16, bytes.array(), shape);
  }

  /** The bits of a float16 that the value is: codebooks hold no others. */
  static short half(float value) {
    int bits = Float.floatToRawIntBits(value);
    int sign = bits >>> 16 & 0x8000;
    int exponent = (bits >>> 23 & 255) - 112;
    if (exponent > 0) {
      return (short) (sign | exponent << 10 | bits >>> 13 & 1023);
    }
    // Subnormal: a multiple of 2^-24.
    return (short) (sign | (int) (Math.abs(value) * 0x1p24f));
  }

  // Reading ----------------------------------------------------------------------------------------------------------

  static CommVqCodebooks read(KvGeometry geometry, Map<String, Tensor> tensors) {
    CommVqCodebooks.Builder builder = CommVqCodebooks.builder(geometry);
    Map<String, Tensor> left = new TreeMap<>(tensors);
    left.keySet().removeIf(name -> !name.startsWith(PREFIX));
    for (int layer = 0; layer < geometry.layers(); layer++) {
      String prefix = PREFIX + layer + ".";
      try {
        KeyCodebook keys = keys(geometry, layer, prefix, left);
        if (keys != null) {
          builder.keys(layer, keys);
        }
        values(geometry, layer, prefix, left, builder);
      } catch (NotFiniteException e) {
        throw new IllegalArgumentException(prefix + "...: " + e.getMessage(), e);
      }
    }
    if (!left.isEmpty()) {
      throw new IllegalArgumentException(
          "the tensors " + left.keySet() + " belong to no codebook of a model of " + geometry.layers() + " layers");
    }
    return builder.build();
  }

  private static @Nullable KeyCodebook keys(
      KvGeometry geometry, int layer, String prefix, Map<String, Tensor> left) {
    Tensor tables = left.remove(prefix + KEY_TABLES);
    if (tables == null) {
      return null;
    }
    List<Long> shape = tables.shape();
    long heads = geometry.kvHeads(layer);
    long headDim = geometry.headDim(layer);
    if (shape.size() != 4 || shape.get(0) != heads || shape.get(3) != headDim) {
      throw new IllegalArgumentException(
          prefix + KEY_TABLES + " has the shape " + shape + ", not [" + heads + ", stages, entries, " + headDim + "]");
    }
    int[] codes = take(left, prefix + KEY_PAIRS).toInts();
    RopePairs pairs =
        Arrays.stream(RopePairs.values())
            .filter(each -> codes.length == 1 && each.code() == codes[0])
            .findFirst()
            .orElseThrow(() -> new IllegalArgumentException(prefix + KEY_PAIRS + " is none of the pairs"));
    return new KeyCodebook(
        (int) heads,
        (int) headDim,
        pairs,
        size(shape.get(1)),
        size(shape.get(2)),
        tables.toFloats());
  }

  private static void values(
      KvGeometry geometry, int layer, String prefix, Map<String, Tensor> left, CommVqCodebooks.Builder builder) {
    Tensor table = left.remove(prefix + VALUE_TABLE);
    if (table == null) {
      return;
    }
    List<Long> shape = table.shape();
    int width = geometry.rowSize(layer);
    if (shape.size() != 2 || shape.get(1) != width) {
      throw new IllegalArgumentException(prefix + VALUE_TABLE + " has the shape " + shape + ", not [codes, " + width + "]");
    }
    int codes = size(shape.get(0));
    Tensor thresholds = left.remove(prefix + VALUE_THRESHOLDS);
    ValueCodebook codebook =
        new ValueCodebook(width, codes, table.toFloats(), thresholds == null ? null : thresholds.toFloats());
    if (ENCODER.stream().noneMatch(name -> left.containsKey(prefix + name))) {
      builder.values(layer, codebook);
      return;
    }
    float[][] parts = new float[ENCODER.size()][];
    for (int i = 0; i < parts.length; i++) {
      parts[i] = take(left, prefix + ENCODER.get(i)).toFloats();
    }
    try {
      ValueEncoder encoder =
          new ValueEncoder(
              new ValueEncoder.Weights(parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6]));
      builder.values(layer, new TrainedValues(encoder, codebook));
    } catch (IllegalArgumentException e) {
      throw new IllegalArgumentException(prefix + "encoder: " + e.getMessage(), e);
    }
  }

  private static Tensor take(Map<String, Tensor> left, String name) {
    Tensor tensor = left.remove(name);
    if (tensor == null) {
      throw new IllegalArgumentException("there is no tensor \"" + name + "\"");
    }
    return tensor;
  }

  /** A dimension as a number of things; a tensor without elements can claim any. */
  private static int size(long dimension) {
    Checks.require(dimension <= Integer.MAX_VALUE, "a dimension of size " + dimension);
    return (int) dimension;
  }
}
