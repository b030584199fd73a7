package dev.kvasir.lab.model;

import dev.kvasir.internal.model.Matrix;
import dev.kvasir.tensor.Tensor;
import dev.kvasir.tensor.TensorType;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Weights of one or more projections of the same input, stacked so that one product computes all of them. They stay in
 * bfloat16 where the file has them so, and are float32 otherwise (float16 widens exactly).
 */
final class Linear {

  private final int outputs;
  private final int inputs;
  private final @Nullable ShortBuffer bfloats;
  private final @Nullable FloatBuffer floats;
  private final @Nullable FloatBuffer bias;

  private Linear(
      int outputs,
      int inputs,
      @Nullable ShortBuffer bfloats,
      @Nullable FloatBuffer floats,
      @Nullable FloatBuffer bias) {
    this.outputs = outputs;
    this.inputs = inputs;
    this.bfloats = bfloats;
    this.floats = floats;
    this.bias = bias;
  }

  /** One projection to stack: the name of its tensors up to ".weight", and its outputs. */
  record Part(String name, int outputs) {}

  /** Reads and stacks projections. Biases are used where the file has them. */
  static Linear read(SafetensorsModel file, int inputs, Part... parts) throws IOException {
    int outputs = 0;
    List<Tensor> tensors = new ArrayList<>();
    boolean allBfloats = true;
    boolean anyBias = false;
    for (Part part : parts) {
      Tensor tensor = file.read(part.name() + ".weight");
      if (!tensor.shape().equals(List.of((long) part.outputs(), (long) inputs))) {
        throw new ModelException(
            part.name() + ".weight is " + tensor.shape() + ", not [" + part.outputs() + ", " + inputs + "]");
      }
      outputs += part.outputs();
      tensors.add(tensor);
      allBfloats &= tensor.type() == TensorType.BF16;
      anyBias |= file.names().contains(part.name() + ".bias");
    }
    ShortBuffer bfloats = null;
    FloatBuffer floats = null;
    if (allBfloats) {
      ByteBuffer bytes = direct((long) outputs * inputs * Short.BYTES);
      tensors.forEach(tensor -> bytes.put(tensor.data()));
      bfloats = bytes.flip().order(ByteOrder.nativeOrder()).asShortBuffer();
    } else {
      floats = direct((long) outputs * inputs * Float.BYTES).asFloatBuffer();
      for (Tensor tensor : tensors) {
        floats.put(tensor.toFloats());
      }
      floats.flip();
    }
    FloatBuffer bias = null;
    if (anyBias) {
      bias = direct((long) outputs * Float.BYTES).asFloatBuffer();
      for (Part part : parts) {
        if (file.names().contains(part.name() + ".bias")) {
          bias.put(vector(file, part.name() + ".bias", part.outputs()));
        } else {
          bias.position(bias.position() + part.outputs());
        }
      }
      bias.flip();
    }
    return new Linear(outputs, inputs, bfloats, floats, bias);
  }

  /** A tensor of one dimension. */
  static float[] vector(SafetensorsModel file, String name, int size) throws IOException {
    Tensor tensor = file.read(name);
    if (!tensor.shape().equals(List.of((long) size))) {
      throw new ModelException(name + " is " + tensor.shape() + ", not [" + size + "]");
    }
    return tensor.toFloats();
  }

  int outputs() {
    return outputs;
  }

  long weights() {
    return (long) outputs * inputs;
  }

  /** {@code out[rows][outputs]} of {@code in[rows][inputs]}. */
  void apply(FloatBuffer in, int rows, FloatBuffer out) {
    if (bfloats != null) {
      Matrix.product(in, bfloats, bias, rows, outputs, inputs, out);
    } else {
      Matrix.product(in, floats, bias, rows, outputs, inputs, out);
    }
  }

  /** Copies one row of the weights: the embedding of a token. */
  void row(int row, float[] out, int offset) {
    for (int i = 0; i < inputs; i++) {
      int at = row * inputs + i;
      out[offset + i] = bfloats != null ? Float.intBitsToFloat(bfloats.get(at) << 16) : floats.get(at);
    }
  }

  /** Zeroed memory in native byte order. Safetensors are little-endian, as are the machines of the library. */
  private static ByteBuffer direct(long bytes) throws ModelException {
    if (bytes > Integer.MAX_VALUE) {
      throw new ModelException("a matrix of " + bytes + " bytes; up to 2 GiB can be run");
    }
    return ByteBuffer.allocateDirect((int) bytes).order(ByteOrder.nativeOrder());
  }
}
