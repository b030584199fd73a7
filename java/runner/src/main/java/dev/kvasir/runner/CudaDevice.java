package dev.kvasir.runner;

import static org.bytedeco.cuda.global.cublas.CUBLAS_COMPUTE_32F;
import static org.bytedeco.cuda.global.cublas.CUBLAS_GEMM_DEFAULT;
import static org.bytedeco.cuda.global.cublas.CUBLAS_OP_N;
import static org.bytedeco.cuda.global.cublas.CUBLAS_OP_T;
import static org.bytedeco.cuda.global.cublas.cublasCreate_v2;
import static org.bytedeco.cuda.global.cublas.cublasDestroy_v2;
import static org.bytedeco.cuda.global.cublas.cublasGemmEx;
import static org.bytedeco.cuda.global.cublas.cublasSetStream_v2;
import static org.bytedeco.cuda.global.cublas.cublasSetWorkspace_v2;
import static org.bytedeco.cuda.global.cudart.CUDA_R_16BF;
import static org.bytedeco.cuda.global.cudart.CUDA_R_32F;
import static org.bytedeco.cuda.global.cudart.cudaEventCreateWithFlags;
import static org.bytedeco.cuda.global.cudart.cudaEventDestroy;
import static org.bytedeco.cuda.global.cudart.cudaEventDisableTiming;
import static org.bytedeco.cuda.global.cudart.cudaEventRecord;
import static org.bytedeco.cuda.global.cudart.cudaEventSynchronize;
import static org.bytedeco.cuda.global.cudart.cudaFree;
import static org.bytedeco.cuda.global.cudart.cudaFreeHost;
import static org.bytedeco.cuda.global.cudart.cudaGetErrorString;
import static org.bytedeco.cuda.global.cudart.cudaGetLastError;
import static org.bytedeco.cuda.global.cudart.cudaGraphDestroy;
import static org.bytedeco.cuda.global.cudart.cudaGraphExecDestroy;
import static org.bytedeco.cuda.global.cudart.cudaGraphInstantiate;
import static org.bytedeco.cuda.global.cudart.cudaGraphLaunch;
import static org.bytedeco.cuda.global.cudart.cudaMalloc;
import static org.bytedeco.cuda.global.cudart.cudaMallocHost;
import static org.bytedeco.cuda.global.cudart.cudaMemcpyAsync;
import static org.bytedeco.cuda.global.cudart.cudaMemcpyDeviceToHost;
import static org.bytedeco.cuda.global.cudart.cudaMemcpyHostToDevice;
import static org.bytedeco.cuda.global.cudart.cudaMemsetAsync;
import static org.bytedeco.cuda.global.cudart.cudaStreamBeginCapture;
import static org.bytedeco.cuda.global.cudart.cudaStreamCaptureModeRelaxed;
import static org.bytedeco.cuda.global.cudart.cudaStreamCreateWithFlags;
import static org.bytedeco.cuda.global.cudart.cudaStreamDestroy;
import static org.bytedeco.cuda.global.cudart.cudaStreamEndCapture;
import static org.bytedeco.cuda.global.cudart.cudaStreamNonBlocking;
import static org.bytedeco.cuda.global.cudart.cudaStreamSynchronize;

import dev.kvasir.DeviceStream;
import dev.kvasir.ElementType;
import dev.kvasir.error.KvException;
import dev.kvasir.internal.model.NativeFloats;
import java.lang.ref.Cleaner;
import java.util.ArrayDeque;
import java.util.Deque;
import org.bytedeco.cuda.cublas.cublasContext;
import org.bytedeco.cuda.cudart.CUevent_st;
import org.bytedeco.cuda.cudart.CUgraphExec_st;
import org.bytedeco.cuda.cudart.CUgraph_st;
import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.IntPointer;
import org.bytedeco.javacpp.Pointer;

/**
 * A GPU through JavaCPP's CUDA presets: memory, one stream, products. Memory is named by its address and belongs to this
 * object, which gives it back when it is closed, or found unreachable. JavaCPP itself allocates none, so that its limits
 * for that, which count mapped files too, do not apply.
 */
final class CudaDevice implements AutoCloseable {

  private static final Cleaner CLEANER = Cleaner.create();
  private static final int OUT_OF_MEMORY = 2; // cudaErrorMemoryAllocation
  /** For tests, as of the core: memory that was never used is mostly zeros, and hides what reads it too soon. */
  private static final boolean STALE_MEMORY = System.getenv("KVASIR_STALE_MEMORY") != null;
  /** What cuBLAS works in on a Hopper GPU, by NVIDIA's advice. */
  private static final long WORKSPACE = 32L << 20;

  /** Memory of the device at an address. */
  private static final class At extends Pointer {
    At(long address) {
      super((Pointer) null);
      this.address = address;
    }
  }

  /** What has to be given back. It knows nothing of the object whose end it waits for. */
  private static final class Held implements Runnable {
    final Deque<Runnable> ends = new ArrayDeque<>();

    @Override
    public synchronized void run() {
      while (!ends.isEmpty()) {
        ends.pop().run();
      }
    }

    synchronized void add(Runnable end) {
      ends.push(end);
    }
  }

  /** Device memory that grows: what it held is lost then. */
  final class Room {
    private long address;
    private long bytes;

    /** Its address, once it has so many bytes at least. */
    long of(long needed) {
      if (needed > bytes) {
        free(address);
        address = 0;
        bytes = 0;
        address = allocate(needed);
        bytes = needed;
      }
      return address;
    }
  }

  /** Numbers that go to the device at the beginning of a step: memory of this machine that the device reads itself. */
  final class Ints {
    private final CUevent_st copied = new CUevent_st();
    private final Room there = new Room();
    private IntPointer here = new IntPointer((Pointer) null);
    private int room;

    Ints() {
      check(cudaEventCreateWithFlags(copied, cudaEventDisableTiming), "an event");
      CUevent_st event = copied;
      held.add(() -> cudaEventDestroy(event));
    }

    /** Their address on the device, in the order of the stream. */
    long upload(int[] values, int count) {
      check(cudaEventSynchronize(copied), "waiting for a copy"); // of the values before
      if (count > room) {
        here = new IntPointer(pinned(4L * Math.max(count, 2 * room)));
        room = Math.max(count, 2 * room);
      }
      here.put(values, 0, count);
      long address = there.of(4L * room);
      check(cudaMemcpyAsync(new At(address), here, 4L * count, cudaMemcpyHostToDevice, stream), "a copy");
      check(cudaEventRecord(copied, stream), "an event");
      return address;
    }
  }

  /** Work on the stream that was recorded once, to be run again. */
  final class Graph implements AutoCloseable {
    private final CUgraphExec_st ready;

    private Graph(CUgraphExec_st ready) {
      this.ready = ready;
    }

    void launch() {
      check(cudaGraphLaunch(ready, stream), "the launch of a graph");
    }

    /** Once the device is done with it. */
    @Override
    public void close() {
      synchronized (held) {
        if (held.ends.remove(new Destroyed(ready))) {
          check(cudaStreamSynchronize(stream), "waiting for the device");
          cudaGraphExecDestroy(ready);
        }
      }
    }
  }

  private record Destroyed(CUgraphExec_st graph) implements Runnable {
    @Override
    public void run() {
      cudaGraphExecDestroy(graph);
    }
  }

  private final Held held = new Held();
  private final Cleaner.Cleanable end = CLEANER.register(this, held);
  private final CUstream_st stream = new CUstream_st();
  private final cublasContext blas = new cublasContext();
  // Each at an address of its own: cuBLAS takes pointers to anything, whose positions JavaCPP counts in bytes.
  private final FloatPointer one = new FloatPointer(NativeFloats.of(new float[] {1}).buffer());
  private final FloatPointer zero = new FloatPointer(NativeFloats.of(new float[] {0}).buffer());

  CudaDevice() {
    try {
      check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "a stream");
      CUstream_st made = stream;
      held.add(() -> cudaStreamDestroy(made));
      checkBlas(cublasCreate_v2(blas), "a context of cuBLAS");
      cublasContext context = blas;
      held.add(() -> cublasDestroy_v2(context));
      checkBlas(cublasSetStream_v2(blas, stream), "cuBLAS' stream");
      checkBlas(cublasSetWorkspace_v2(blas, new At(allocate(WORKSPACE)), WORKSPACE), "cuBLAS' workspace");
    } catch (RuntimeException e) {
      close();
      throw e;
    }
  }

  /** The stream, for the calls of caches. */
  DeviceStream stream() {
    return DeviceStream.of(stream);
  }

  /** The same for the presets' own calls. */
  CUstream_st cudaStream() {
    return stream;
  }

  /** Memory until {@link #free} or the end. */
  long allocate(long bytes) {
    Pointer found = new Pointer();
    check(cudaMalloc(found, Math.max(16, bytes)), bytes + " bytes of the device's memory");
    long address = found.address();
    synchronized (held) {
      held.add(new Freed(address));
    }
    if (STALE_MEMORY) {
      check(cudaMemsetAsync(new At(address), 0xff, Math.max(16, bytes), stream), "stale memory");
      synchronize();
    }
    return address;
  }

  private record Freed(long address) implements Runnable {
    @Override
    public void run() {
      cudaFree(new At(address));
    }
  }

  /** Gives memory back, once the device is done with it. */
  void free(long address) {
    synchronized (held) {
      if (address != 0 && held.ends.remove(new Freed(address))) {
        check(cudaStreamSynchronize(stream), "waiting for the device");
        cudaFree(new At(address));
      }
    }
  }

  /** Memory of this machine that the device reads and writes itself, until {@link #unpin} or the end. */
  Pointer pinned(long bytes) {
    Pointer found = new Pointer();
    check(cudaMallocHost(found, bytes), bytes + " bytes of locked memory");
    long address = found.address();
    held.add(new Unpinned(address));
    return found;
  }

  private record Unpinned(long address) implements Runnable {
    @Override
    public void run() {
      cudaFreeHost(new At(address));
    }
  }

  /** Gives that back; nothing may be on its way to it or from it. */
  void unpin(long address) {
    synchronized (held) {
      if (held.ends.remove(new Unpinned(address))) {
        cudaFreeHost(new At(address));
      }
    }
  }

  /** Copies to the device, in the order of the stream; the source may be reused at once. */
  void upload(Pointer from, long bytes, long to) {
    check(cudaMemcpyAsync(new At(to), from, bytes, cudaMemcpyHostToDevice, stream), "a copy to the device");
    synchronize();
  }

  /** Copies from the device, and waits for it. */
  void download(long from, long bytes, Pointer to) {
    check(cudaMemcpyAsync(to, new At(from), bytes, cudaMemcpyDeviceToHost, stream), "a copy from the device");
    synchronize();
  }

  void synchronize() {
    check(cudaStreamSynchronize(stream), "waiting for the device");
  }

  /** Records what the work puts on the stream, without running it. Throws what the work throws. */
  Graph record(Runnable work) {
    CUgraph_st graph = new CUgraph_st();
    CUgraphExec_st ready = new CUgraphExec_st();
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "the beginning of a graph");
    try {
      work.run();
    } catch (RuntimeException | Error e) {
      if (cudaStreamEndCapture(stream, graph) == 0) {
        cudaGraphDestroy(graph);
      }
      cudaGetLastError(); // the capture's failure ends with it
      throw e;
    }
    check(cudaStreamEndCapture(stream, graph), "the end of a graph");
    int status = cudaGraphInstantiate(ready, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "a graph");
    synchronized (held) {
      held.add(new Destroyed(ready));
    }
    return new Graph(ready);
  }

  /**
   * {@code out[r][o] = sum over i of in[r][i] * weights[o][i]}, of bfloat16.
   *
   * @param type of {@code out}: float32 or bfloat16
   */
  void product(long in, long weights, int rows, int outputs, int inputs, ElementType type, long out) {
    int kind = type == ElementType.FLOAT32 ? CUDA_R_32F : CUDA_R_16BF;
    // cuBLAS counts columns first: its matrices are the transposes of ours.
    checkBlas(
        cublasGemmEx(
            blas, CUBLAS_OP_T, CUBLAS_OP_N, outputs, rows, inputs, one, new At(weights), CUDA_R_16BF, inputs,
            new At(in), CUDA_R_16BF, inputs, zero, new At(out), kind, outputs, CUBLAS_COMPUTE_32F,
            CUBLAS_GEMM_DEFAULT),
        "a product");
  }

  static void check(int status, String what) {
    if (status == 0) {
      return;
    }
    if (status == OUT_OF_MEMORY) {
      cudaGetLastError(); // it is no lasting failure
      throw new KvException(KvException.Code.OUT_OF_MEMORY, "the device has no memory left for " + what, null);
    }
    throw new KvException(
        KvException.Code.DEVICE_FAILED, what + ": " + cudaGetErrorString(status).getString(), null);
  }

  private static void checkBlas(int status, String what) {
    if (status != 0) {
      throw new KvException(KvException.Code.DEVICE_FAILED, what + ": cuBLAS says " + status, null);
    }
  }

  @Override
  public void close() {
    end.clean();
  }
}
