import static org.bytedeco.cuda.global.cudart.cudaFree;
import static org.bytedeco.cuda.global.cudart.cudaMalloc;
import static org.bytedeco.cuda.global.cudart.cudaMemcpy;
import static org.bytedeco.cuda.global.cudart.cudaMemcpyDeviceToHost;
import static org.bytedeco.cuda.global.cudart.cudaMemcpyHostToDevice;

import dev.kvasir.DeviceBuffer;
import dev.kvasir.DeviceStream;
import dev.kvasir.ElementType;
import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.Kvasir;
import dev.kvasir.method.Uniform;
import java.util.Random;
import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.Pointer;

/**
 * A cache on a GPU whose rows are there already: nothing is copied to this machine. Memory is that of JavaCPP's CUDA presets; any
 * other address on the device will do. Where there is no GPU it says so.
 */
public final class DeviceBuffers {

  private static final KvGeometry GEOMETRY =
      KvGeometry.builder().layers(1).queryHeads(8).kvHeads(2).headDim(128).build();
  private static final int TOKENS = 1000;

  public static void main(String[] args) {
    if (Kvasir.backends().stream().noneMatch(backend -> backend.name().equals("cuda") && backend.available())) {
      System.out.println("DeviceBuffers: there is no GPU here, or no natives for one");
      return;
    }
    float[] keys = numbers(1, TOKENS * GEOMETRY.rowSize(0));
    float[] values = numbers(2, TOKENS * GEOMETRY.rowSize(0));
    float[] query = numbers(3, GEOMETRY.querySize(0));
    float[] onDevice = new float[query.length];
    Pointer k = upload(keys);
    Pointer v = upload(values);
    Pointer q = upload(query);
    try (KvCache cache = KvCache.builder(GEOMETRY).method(Uniform.bits(4)).backend("cuda").build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, buffer(k, keys.length), buffer(v, values.length), TOKENS, DeviceStream.DEFAULT);
      sequence.attend(0, buffer(q, query.length), buffer(q, query.length), DeviceStream.DEFAULT);
      FloatPointer outputs = new FloatPointer(onDevice.length);
      check(cudaMemcpy(outputs, q, onDevice.length * 4L, cudaMemcpyDeviceToHost));
      outputs.get(onDevice);
    }
    for (Pointer each : new Pointer[] {k, v, q}) {
      check(cudaFree(each));
    }
    double error = distance(onDevice, onThisMachine(keys, values, query));
    System.out.printf("DeviceBuffers: attention on the device, within %.1e of this machine's%n", error);
    if (!(error < 1e-2)) {
      throw new AssertionError("the device computes something else");
    }
  }

  private static float[] onThisMachine(float[] keys, float[] values, float[] query) {
    String backend =
        Kvasir.backends().stream().filter(b -> b.available() && !b.name().equals("cuda")).findFirst().orElseThrow().name();
    float[] output = new float[query.length];
    try (KvCache cache = KvCache.builder(GEOMETRY).method(Uniform.bits(4)).backend(backend).build();
        KvSequence sequence = cache.newSequence()) {
      sequence.append(0, keys, values, TOKENS);
      sequence.attend(0, query, output);
    }
    return output;
  }

  private static Pointer upload(float[] numbers) {
    Pointer memory = new Pointer();
    check(cudaMalloc(memory, numbers.length * 4L));
    check(cudaMemcpy(memory, new FloatPointer(numbers), numbers.length * 4L, cudaMemcpyHostToDevice));
    return memory;
  }

  private static DeviceBuffer buffer(Pointer memory, int elements) {
    return new DeviceBuffer(memory.address(), ElementType.FLOAT32, elements);
  }

  private static void check(int status) {
    if (status != 0) {
      throw new IllegalStateException("CUDA error " + status);
    }
  }

  private static double distance(float[] a, float[] b) {
    double difference = 0;
    double size = 0;
    for (int i = 0; i < a.length; i++) {
      difference += Math.pow(a[i] - b[i], 2);
      size += Math.pow(b[i], 2);
    }
    return Math.sqrt(difference / size);
  }

  private static float[] numbers(long seed, int count) {
    Random random = new Random(seed);
    float[] numbers = new float[count];
    for (int i = 0; i < count; i++) {
      numbers[i] = (float) random.nextGaussian();
    }
    return numbers;
  }
}
