package dev.kvasir.runner;

import dev.kvasir.AttendBatch;
import dev.kvasir.DeviceBuffer;
import dev.kvasir.ElementType;
import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Kvasir;
import dev.kvasir.Need;
import dev.kvasir.Precision;
import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.internal.model.DeviceOperations;
import dev.kvasir.internal.model.ModelOperations;
import dev.kvasir.internal.model.NativeFloats;
import dev.kvasir.internal.model.NativeWeights;
import dev.kvasir.rope.Rope;
import dev.kvasir.runner.file.WeightType;
import dev.kvasir.runner.file.Weights;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.IntPointer;
import org.jspecify.annotations.Nullable;

/**
 * {@link Compute} on a GPU: weights in bfloat16, products by cuBLAS, the rest by kernels of this library, attention by
 * the cache where it lies. device_model.h says how numbers look between them, for both precisions. Nothing waits for the
 * device but what reads results.
 */
class CudaCompute implements Compute {

  /** Most logits that are held at once. */
  private static final int LOGIT_BLOCK = 1 << 26;
  /** Most weights that are widened at once on their way to the device. */
  private static final int UPLOAD_BLOCK = 1 << 22;

  private record CudaMatrix(long weights, int rows, int width, long bias) implements Matrix {}

  private record CudaVector(long values, int size) implements Vector {}

  /** Rows of one kind, of so many bytes each. */
  private static final class CudaRows implements Rows {
    final int width;
    final int bytes;
    long address;
    /** What is to be added to what the last product left here. */
    long bias;
    /** Whether the parts of an exact product have been added up in place. */
    boolean summed;

    CudaRows(int width, int bytes) {
      this.width = width;
      this.bytes = bytes;
    }
  }

  private final CudaDevice device = new CudaDevice();
  private final long stream = device.stream().handle();
  private final CudaDevice.Ints ids = device.new Ints();
  private final CudaDevice.Ints places = device.new Ints();
  private final CudaDevice.Ints chosen = device.new Ints();
  private final List<CudaRows> all = new ArrayList<>();
  private final Precision precision;
  private final boolean exact;
  private final Rope rope;
  private final double epsilon;
  private final DeviceOperations.Heads shape;
  private final long frequencies;
  private final CudaRows turns;
  private final CudaRows queries;
  private final CudaRows keys;
  private final CudaRows values;
  private final CudaRows outputs;
  private final CudaDevice.Room best = device.new Room();
  private @Nullable FloatPointer read;

  private int room;
  private int count;
  private long tokens;
  private List<Decoder.Feed> feeds = List.of();
  private List<KvSequence> sequences = List.of();
  private int[] counts = {};
  private int[] positions = {};
  private @Nullable AttendBatch batch;
  private final StepRecord record = new StepRecord(device);

  CudaCompute(ModelConfig config, Precision precision) {
    this.precision = precision;
    this.exact = precision == Precision.EXACT;
    this.rope = config.rope();
    this.epsilon = config.normEpsilon();
    this.shape =
        new DeviceOperations.Heads(config.queryHeads(), config.kvHeads(), config.headDim(), rope.pairs().code());
    double[] known = rope.frequencies();
    this.frequencies = device.allocate(8L * known.length);
    ByteBuffer bytes = ByteBuffer.allocateDirect(8 * known.length).order(ByteOrder.nativeOrder());
    bytes.asDoubleBuffer().put(known);
    device.upload(new BytePointer(bytes), 8L * known.length, frequencies);
    int querySize = config.queryHeads() * config.headDim();
    int rowSize = config.kvHeads() * config.headDim();
    this.turns = rows(config.headDim(), Float.BYTES);
    this.queries = rows(querySize, queryType().bytes());
    this.keys = rows(rowSize, Short.BYTES);
    this.values = rows(rowSize, Short.BYTES);
    this.outputs = rows(exact ? querySize : 0, Float.BYTES);
  }

  /**
   * Checks first that all is there.
   *
   * @throws NativeUnavailableException with what is missing
   */
  static CudaCompute create(ModelConfig config, Precision precision) {
    if (Kvasir.backends().stream().noneMatch(backend -> backend.name().equals("cuda") && backend.available())) {
      throw new NativeUnavailableException("the backend cuda cannot run here: see Kvasir.backends()", null);
    }
    try {
      Class.forName("org.bytedeco.cuda.global.cudart");
      Class.forName("org.bytedeco.cuda.global.cublas");
    } catch (ClassNotFoundException | LinkageError e) {
      throw new NativeUnavailableException(
          "models on a GPU need org.bytedeco:cuda:13.1-9.19-1.5.13 and org.bytedeco:javacpp:1.5.14, both also with the"
              + " classifier linux-x86_64 or linux-arm64, on the class path, and libcudart.so.13 and libcublas.so.13 where"
              + " LD_LIBRARY_PATH says: "
              + e,
          e);
    }
    return new CudaCompute(config, precision);
  }

  private ElementType queryType() {
    return exact ? ElementType.FLOAT32 : ElementType.BFLOAT16;
  }

  // Weights -------------------------------------------------------------------------------------------------------

  @Override
  public Matrix matrix(Model.Projection... parts) {
    int width = parts[0].weights().width();
    int rows = 0;
    boolean biased = false;
    for (Model.Projection part : parts) {
      rows = Math.addExact(rows, part.weights().rows());
      biased |= part.bias() != null;
    }
    long address = device.allocate(2L * rows * width);
    float[] bias = new float[rows];
    int at = 0;
    for (Model.Projection part : parts) {
      upload(part.weights(), address + 2L * at * width);
      if (part.bias() != null) {
        System.arraycopy(part.bias(), 0, bias, at, part.bias().length);
      }
      at += part.weights().rows();
    }
    return new CudaMatrix(address, rows, width, biased ? floats(bias) : 0);
  }

  /** Brings weights to the device, as bfloat16. */
  void upload(Weights weights, long address) {
    if (weights.type() == WeightType.BF16) {
      device.upload(new BytePointer(weights.bytes()), weights.size(), address);
      return;
    }
    NativeWeights known =
        new NativeWeights(weights.bytes(), weights.type().code(), weights.rows(), weights.width());
    int width = weights.width();
    int block = Math.max(1, Math.min(weights.rows(), UPLOAD_BLOCK / width));
    NativeFloats wide = new NativeFloats(Math.multiplyExact(block, width));
    long there = device.allocate(4L * block * width);
    for (int row = 0; row < weights.rows(); row += block) {
      int taken = Math.min(block, weights.rows() - row);
      int[] numbers = new int[taken];
      for (int i = 0; i < taken; i++) {
        numbers[i] = row + i;
      }
      ModelOperations.embed(numbers, taken, known, wide);
      device.upload(new FloatPointer(wide.buffer()), 4L * taken * width, there);
      DeviceOperations.toProduct(there, taken, width, Precision.FAST, address + 2L * row * width, stream);
    }
    Reference.reachabilityFence(wide);
    device.free(there);
  }

  private long floats(float[] values) {
    long address = device.allocate(4L * values.length);
    NativeFloats here = NativeFloats.of(values);
    device.upload(new FloatPointer(here.buffer()), 4L * values.length, address);
    Reference.reachabilityFence(here);
    return address;
  }

  @Override
  public Vector vector(float[] values) {
    return new CudaVector(floats(values), values.length);
  }

  // Rows ----------------------------------------------------------------------------------------------------------

  private CudaRows rows(int width, int bytes) {
    CudaRows rows = new CudaRows(width, bytes);
    all.add(rows);
    return rows;
  }

  @Override
  public Rows state(int width) {
    return rows(width, Float.BYTES);
  }

  @Override
  public Rows input(int width) {
    return rows(width, exact ? 2 * Short.BYTES : Short.BYTES);
  }

  @Override
  public Rows product(int... widths) {
    int width = 0;
    for (int each : widths) {
      width = Math.addExact(width, each);
    }
    return rows(width, exact ? 2 * Float.BYTES : Short.BYTES);
  }

  @Override
  public Rows logits(int vocabulary) {
    CudaRows rows = new CudaRows(vocabulary, exact ? 2 * Float.BYTES : Float.BYTES);
    rows.address = device.allocate((long) logitRows(vocabulary) * vocabulary * rows.bytes);
    return rows;
  }

  @Override
  public int logitRows(int vocabulary) {
    return Math.max(1, LOGIT_BLOCK / vocabulary);
  }

  private static long at(Rows rows) {
    return ((CudaRows) rows).address;
  }

  private static int width(Rows rows) {
    return ((CudaRows) rows).width;
  }

  private static long bias(Rows rows) {
    return ((CudaRows) rows).bias;
  }

  private static long at(@Nullable Vector vector) {
    return vector == null ? 0 : ((CudaVector) vector).values();
  }

  // A step --------------------------------------------------------------------------------------------------------

  @Override
  public void begin(List<Decoder.Feed> step, int[] numbers, int[] positions) {
    this.positions = positions;
    count = numbers.length;
    if (count > room) {
      record.forget();
      int wanted = Math.max(count, room + room / 2);
      room = 0; // until all rows have their memory: where one gets none, the next step begins again
      for (CudaRows rows : all) {
        device.free(rows.address);
        rows.address = 0;
        rows.address = device.allocate((long) wanted * rows.width * rows.bytes);
      }
      room = wanted;
    }
    feeds = step;
    sequences = step.stream().map(Decoder.Feed::sequence).toList();
    counts = step.stream().mapToInt(Decoder.Feed::count).toArray();
    batch =
        new AttendBatch(sequences)
            .queries(dev.kvasir.Rows.of(buffer(queries, queryType())))
            .stream(device.stream());
    if (count > sequences.size()) {
      batch.tokens(counts);
    }
    tokens = ids.upload(numbers, count);
    long where = places.upload(positions, count);
    DeviceOperations.ropeTurns(
        frequencies, shape.headDim(), rope.attentionFactor(), where, count, turns.address, stream);
  }

  @Override
  public void run(Runnable operations) {
    record.run(sequences, positions, operations);
  }

  private DeviceBuffer buffer(CudaRows rows, ElementType type) {
    return new DeviceBuffer(rows.address, type, (long) count * rows.width);
  }

  @Override
  public void embed(Matrix matrix, Rows state) {
    CudaMatrix known = (CudaMatrix) matrix;
    DeviceOperations.embed(tokens, count, known.weights(), known.width(), at(state), stream);
  }

  @Override
  public void norm(Rows state, int rows, Vector weight, Rows input) {
    DeviceOperations.rmsNorm(at(state), at(weight), epsilon, rows, width(state), precision, at(input), stream);
  }

  @Override
  public void project(Rows input, int rows, Matrix matrix, Rows product) {
    CudaMatrix known = (CudaMatrix) matrix;
    CudaRows out = (CudaRows) product;
    // Two bytes are bfloat16; four, or twice as many, float32.
    ElementType type = out.bytes == Short.BYTES ? ElementType.BFLOAT16 : ElementType.FLOAT32;
    device.product(
        at(input), known.weights(), exact ? 2 * rows : rows, known.rows(), known.width(), type, out.address);
    out.bias = known.bias();
    out.summed = false;
  }

  @Override
  public void heads(Rows product, @Nullable Vector queryNorm, @Nullable Vector keyNorm, boolean turnKeys) {
    DeviceOperations.heads(
        at(product),
        bias(product),
        at(queryNorm),
        at(keyNorm),
        epsilon,
        turns.address,
        count,
        shape,
        turnKeys,
        precision,
        queries.address,
        keys.address,
        values.address,
        stream);
  }

  @Override
  public void append(int layer, Rows product) {
    KvCache cache = sequences.get(0).cache();
    if (cache.method().needs().contains(Need.OBSERVED_QUERIES)) {
      showQueries(layer, product);
    }
    cache.append(
        layer,
        sequences,
        counts,
        dev.kvasir.Rows.of(buffer(keys, ElementType.FLOAT16)),
        dev.kvasir.Rows.of(buffer(values, ElementType.FLOAT16)),
        device.stream());
  }

  @Override
  public void attend(int layer, Rows product, Rows input) {
    KvCache cache = sequences.get(0).cache();
    CudaRows out = exact ? outputs : (CudaRows) input;
    cache.attend(Objects.requireNonNull(batch, "a step").layer(layer).outputs(dev.kvasir.Rows.of(buffer(out, queryType()))));
    if (exact) {
      DeviceOperations.toProduct(out.address, count, out.width, precision, at(input), stream);
    }
  }

  /** Pages of the first chunk are sealed before attention sees its queries. */
  private void showQueries(int layer, Rows product) {
    int row = 0;
    FloatBuffer found = null;
    for (Decoder.Feed feed : feeds) {
      if (feed.sequence().length(layer) == 0) {
        found = found == null ? queries(product) : found;
        feed.sequence()
            .observe(layer, found.slice(row * queries.width, feed.count() * queries.width), feed.count());
      }
      row += feed.count();
    }
  }

  @Override
  public void swiglu(Rows product, Rows input) {
    DeviceOperations.swiglu(at(product), bias(product), count, width(input), precision, at(input), stream);
  }

  @Override
  public void add(Rows product, Rows state, @Nullable Vector weight, @Nullable Rows input) {
    DeviceOperations.add(
        at(product),
        bias(product),
        at(state),
        at(weight),
        epsilon,
        count,
        width(state),
        precision,
        input == null ? 0 : at(input),
        stream);
  }

  @Override
  public void gather(Rows state, int[] from, int rows, Rows out) {
    DeviceOperations.gather(at(state), chosen.upload(from, rows), rows, width(state), at(out), stream);
  }

  // Results -------------------------------------------------------------------------------------------------------

  /** Logits as one float32 each: those of pairs are sums. */
  private void finish(CudaRows logits, int rows) {
    if (exact && !logits.summed) {
      DeviceOperations.fromProduct(logits.address, rows, logits.width, precision, logits.address, stream);
      logits.summed = true;
    }
  }

  @Override
  public int[] likeliest(Rows logits, int rows) {
    finish((CudaRows) logits, rows);
    long there = best.of(4L * logitRows(width(logits)));
    DeviceOperations.argmax(at(logits), rows, width(logits), there, stream);
    int[] found = new int[rows];
    new IntPointer(download(there, rows, logitRows(width(logits)))).get(found);
    return found;
  }

  @Override
  public FloatBuffer read(Rows logits, int rows) {
    finish((CudaRows) logits, rows);
    int width = width(logits);
    return download(at(logits), (long) rows * width, (long) logitRows(width) * width).asBuffer();
  }

  /** So many numbers of four bytes, never more than {@code most}, in memory that the next download may take. */
  private FloatPointer download(long from, long numbers, long most) {
    FloatPointer to = read;
    if (to == null || to.capacity() < numbers) {
      long wanted = numbers;
      if (to != null) {
        // At least twice as much: sessions that come one by one do not lock memory at every step.
        wanted = Math.max(numbers, Math.min(most, 2 * to.capacity()));
        read = null;
        device.unpin(to.address()); // no copy goes there: every download waits for its own
      }
      to = new FloatPointer(device.pinned(4 * wanted)).capacity(wanted);
      read = to;
    }
    device.download(from, 4 * numbers, to);
    return to.position(0).limit(numbers);
  }

  @Override
  public FloatBuffer queries(Rows product) {
    return exact ? copy(queries.address, queries.width) : widened(queries.address, queries.width);
  }

  @Override
  public FloatBuffer outputs(Rows input) {
    return exact ? copy(outputs.address, outputs.width) : widened(at(input), width(input));
  }

  private FloatBuffer copy(long from, int width) {
    NativeFloats out = new NativeFloats(Math.multiplyExact(count, width));
    device.download(from, 4L * count * width, new FloatPointer(out.buffer()));
    Reference.reachabilityFence(out);
    return out.buffer();
  }

  private FloatBuffer widened(long from, int width) {
    long there = device.allocate(4L * count * width);
    DeviceOperations.fromProduct(from, count, width, Precision.FAST, there, stream);
    FloatBuffer out = copy(there, width);
    device.free(there);
    return out;
  }

  /** For those who time it. */
  CudaDevice device() {
    return device;
  }

  @Override
  public void close() {
    device.close();
  }
}
