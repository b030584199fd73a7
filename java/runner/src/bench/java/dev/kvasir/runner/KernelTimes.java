package dev.kvasir.runner;

import static org.bytedeco.cuda.global.cudart.cudaEventCreate;
import static org.bytedeco.cuda.global.cudart.cudaEventDestroy;
import static org.bytedeco.cuda.global.cudart.cudaEventElapsedTime;
import static org.bytedeco.cuda.global.cudart.cudaEventRecord;
import static org.bytedeco.cuda.global.cudart.cudaEventSynchronize;

import dev.kvasir.AttendBatch;
import dev.kvasir.DeviceBuffer;
import dev.kvasir.ElementType;
import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Rows;
import dev.kvasir.internal.model.DeviceOperations;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.bytedeco.cuda.cudart.CUevent_st;

/**
 * What the kernels of a step take by themselves: each kind, for all layers, as a graph that the device runs without
 * waiting for anybody.
 */
final class KernelTimes {

  private static final int REPEATS = 7;

  private final CudaDevice device;
  private final Map<String, Double> all = new LinkedHashMap<>();

  KernelTimes(Decoder decoder, CudaDevice device, KvCache cache, List<KvSequence> sequences, Model model) {
    this.device = device;
    int rows = sequences.size();
    int layers = model.config().layers();
    decoder.kinds(rows).forEach((name, work) -> all.put(name, captured(work)));

    long querySize = (long) model.config().queryHeads() * model.config().headDim();
    long rowSize = (long) model.config().kvHeads() * model.config().headDim();
    long memory = device.allocate(2 * rows * (2 * querySize + rowSize));
    DeviceOperations.random(3, 1, rows * (2 * querySize + rowSize), ElementType.BFLOAT16, memory, device.stream().handle());
    AttendBatch batch =
        new AttendBatch(sequences)
            .queries(Rows.of(new DeviceBuffer(memory, ElementType.BFLOAT16, rows * querySize)))
            .outputs(Rows.of(new DeviceBuffer(memory + 2 * rows * querySize, ElementType.BFLOAT16, rows * querySize)))
            .stream(device.stream());
    all.put(
        "attend",
        captured(
            () -> {
              for (int layer = 0; layer < layers; layer++) {
                cache.attend(batch.layer(layer));
              }
            }));
    Rows appended =
        Rows.of(new DeviceBuffer(memory + 4 * rows * querySize, ElementType.BFLOAT16, rows * rowSize));
    int[] ones = new int[rows];
    Arrays.fill(ones, 1);
    cache.extend(sequences, device.stream());
    all.put(
        "append",
        captured(
            () -> {
              for (int layer = 0; layer < layers; layer++) {
                cache.append(layer, sequences, ones, appended, appended, device.stream());
              }
            }));
    device.free(memory);
  }

  /** Milliseconds by kind. */
  Map<String, Double> all() {
    return all;
  }

  double sum() {
    return all.values().stream().mapToDouble(Double::doubleValue).sum();
  }

  private double captured(Runnable work) {
    try (CudaDevice.Graph graph = device.record(work)) {
      return timed(graph::launch);
    }
  }

  /** The median of some. */
  private double timed(Runnable work) {
    CUevent_st begin = new CUevent_st();
    CUevent_st end = new CUevent_st();
    CudaDevice.check(cudaEventCreate(begin), "an event");
    CudaDevice.check(cudaEventCreate(end), "an event");
    double[] times = new double[REPEATS];
    for (int i = -2; i < REPEATS; i++) {
      CudaDevice.check(cudaEventRecord(begin, device.cudaStream()), "an event");
      work.run();
      CudaDevice.check(cudaEventRecord(end, device.cudaStream()), "an event");
      CudaDevice.check(cudaEventSynchronize(end), "waiting for an event");
      float[] ms = new float[1];
      CudaDevice.check(cudaEventElapsedTime(ms, begin, end), "the time between events");
      if (i >= 0) {
        times[i] = ms[0];
      }
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    Arrays.sort(times);
    return times[REPEATS / 2];
  }
}
