package dev.kvasir;

import dev.kvasir.internal.Checks;
import dev.kvasir.internal.NativeBatch;
import dev.kvasir.internal.NativeMemory;
import java.util.List;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * One call of attention, over any number of sequences with any numbers of query tokens each: what an engine does once for
 * every layer of a step, whatever the batch.
 *
 * <pre>{@code
 * AttendBatch step = new AttendBatch(sequences);  // one query token of each
 * for (int layer = 0; layer < layers; layer++) {
 *   // ... append the layer's keys and values ...
 *   cache.attend(step.layer(layer).queries(Rows.of(queries)).outputs(Rows.of(outputs)));
 * }
 * }</pre>
 *
 * <p>Rows of a sequence's query tokens follow those of the sequence before it; a chunk of a prompt may stand beside single
 * tokens ({@link #tokens(int...)}). Settings stay until they are changed. Arrays are read when {@link KvCache#attend} is
 * called. Not for use by several threads.
 */
public final class AttendBatch {

  /** The most query tokens of a sequence that can have masks. */
  public static final int MAX_MASKED_TOKENS = 64;

  private List<KvSequence> sequences;
  private int layer;
  private int tokensEach = 1;
  private int @Nullable [] tokens;
  private @Nullable Rows queries;
  private @Nullable Rows outputs;
  private float @Nullable [] logSums;
  private @Nullable DeviceBuffer deviceLogSums;
  private boolean learnedSinks = true;
  private long @Nullable [] masks;
  private int @Nullable [] depths;
  private @Nullable DeviceStream stream;

  /**
   * A batch of layer 0, with one query token of each sequence.
   *
   * @param sequences sequences of one cache, at least one; one may be listed more than once
   */
  public AttendBatch(List<KvSequence> sequences) {
    this.sequences = List.copyOf(sequences);
    Checks.require(!this.sequences.isEmpty(), "no sequences");
  }

  /**
   * The layer.
   *
   * @param layer 0 .. layers-1
   * @return this batch
   */
  public AttendBatch layer(int layer) {
    this.layer = layer;
    return this;
  }

  /**
   * As many query tokens for each sequence: its newest, which must have been appended. Query {@code i} of {@code n} sees
   * the tokens up to position {@code length - n + i}.
   *
   * @param tokens 1 or more
   * @return this batch
   */
  public AttendBatch tokensEach(int tokens) {
    Checks.requirePositive("tokens", tokens);
    this.tokensEach = tokens;
    this.tokens = null;
    return this;
  }

  /**
   * Query tokens of each sequence: {@link #tokensEach}, where they differ.
   *
   * @param tokens by sequence, 1 or more
   * @return this batch
   * @throws IllegalArgumentException if there is not one number for each sequence, or one is not positive
   */
  public AttendBatch tokens(int... tokens) {
    Checks.require(
        tokens.length == sequences.size(), "tokens of " + tokens.length + " sequences, not " + sequences.size());
    for (int each : tokens) {
      Checks.requirePositive("tokens", each);
    }
    this.tokens = tokens.clone();
    return this;
  }

  /**
   * The queries. Required.
   *
   * @param queries {@code [rows][queryHeads][headDim]}
   * @return this batch
   */
  public AttendBatch queries(Rows queries) {
    this.queries = Objects.requireNonNull(queries, "queries");
    return this;
  }

  /**
   * Where outputs go. Required. Their type and strides are their own; in memory of this machine they may be written over
   * the queries.
   *
   * @param outputs the shape of the queries
   * @return this batch
   */
  public AttendBatch outputs(Rows outputs) {
    this.outputs = Objects.requireNonNull(outputs, "outputs");
    return this;
  }

  /**
   * Asks for the natural logarithm of each softmax's denominator: of the sum of {@code exp(logit)} over all that the query
   * sees, with logits scaled and, where the layer has a cap, capped. {@link KvAttention#merge} puts two results together
   * by it.
   *
   * @param logSums {@code [rows][queryHeads]}; null for none
   * @return this batch
   */
  public AttendBatch logSums(float @Nullable [] logSums) {
    this.logSums = logSums;
    this.deviceLogSums = null;
    return this;
  }

  /**
   * {@link #logSums(float[])} in memory of the device.
   *
   * @param logSums {@code [rows][queryHeads]}, of {@link ElementType#FLOAT32}
   * @return this batch
   * @throws IllegalArgumentException if of another type
   */
  public AttendBatch logSums(DeviceBuffer logSums) {
    Checks.require(logSums.type() == ElementType.FLOAT32, "log-sums are no " + logSums.type());
    this.logSums = null;
    this.deviceLogSums = logSums;
    return this;
  }

  /**
   * Whether the layer's learned sinks ({@link KvGeometry.Builder#sinkLogits}) count, in outputs and log-sums alike; the
   * default is that they do. Where one attention is computed in parts, they must count in exactly one of them.
   *
   * @param count whether they count
   * @return this batch
   */
  public AttendBatch learnedSinks(boolean count) {
    this.learnedSinks = count;
    return this;
  }

  /**
   * Trees of guesses: query {@code i} of a sequence's {@code n} newest tokens, {@value #MAX_MASKED_TOKENS} at most, sees
   * all tokens before those {@code n}, and of the {@code n} those {@code j} whose bit {@code j} is set in its mask. Its own
   * bit must be. Sequences whose masks are all 0 have none.
   *
   * @param masks by row; null for none
   * @return this batch
   */
  public AttendBatch masks(long @Nullable [] masks) {
    this.masks = masks;
    return this;
  }

  /**
   * How far behind the tokens before its sequence's query tokens each of them stands, as RoPE counts: sliding windows go
   * by it, and keys that are stored before RoPE. Without this it is the number of other bits in its mask, which in a tree
   * are its ancestors.
   *
   * @param depths by row, 0..63; null for the bits of masks
   * @return this batch
   */
  public AttendBatch depths(int @Nullable [] depths) {
    this.depths = depths;
    return this;
  }

  /**
   * For rows on a device: the stream that queries are made on and outputs used on. The call returns before the work is
   * done.
   *
   * @param stream the stream
   * @return this batch
   */
  public AttendBatch stream(DeviceStream stream) {
    this.stream = Objects.requireNonNull(stream, "stream");
    return this;
  }

  /** As it is now. */
  AttendBatch(AttendBatch other) {
    this.sequences = other.sequences;
    this.layer = other.layer;
    this.tokensEach = other.tokensEach;
    this.tokens = other.tokens;
    this.queries = other.queries;
    this.outputs = other.outputs;
    this.logSums = other.logSums;
    this.deviceLogSums = other.deviceLogSums;
    this.learnedSinks = other.learnedSinks;
    this.masks = other.masks;
    this.depths = other.depths;
    this.stream = other.stream;
  }

  List<KvSequence> sequences() {
    return sequences;
  }

  int layer() {
    return layer;
  }

  /** Refuses what does not fit together, before anything is read. */
  void check(KvGeometry geometry) {
    Checks.require(queries != null, "queries are not set");
    Checks.require(outputs != null, "outputs are not set");
    long rows = rows();
    int heads = geometry.queryHeads(layer);
    queries.require("queries", rows, heads, geometry.headDim(layer), false);
    outputs.require("outputs", rows, heads, geometry.valueDim(layer), true);
    boolean device = queries.onDevice();
    Checks.require(device == outputs.onDevice(), "queries and outputs are not both on the device");
    Checks.require(!device || stream != null, "rows on the device, and no stream");
    long sums = Checks.product(rows, heads);
    if (logSums != null) {
      Checks.require(!device, "log-sums are not on the device");
      Checks.requireElements("logSums", logSums.length, sums);
    }
    if (deviceLogSums != null) {
      Checks.require(device, "log-sums on the device, and queries not");
      deviceLogSums.require("logSums", sums);
    }
    Checks.require(depths == null || masks != null, "depths without masks");
    if (masks != null) {
      Checks.requireElements("masks", masks.length, rows);
    }
    if (depths != null) {
      Checks.requireElements("depths", depths.length, rows);
    }
  }

  /** Runs a call while the memory of rows stays. */
  void holding(Runnable call) {
    Rows.holding(call, queries, outputs);
  }

  /** After {@link #check}. */
  void write(KvGeometry geometry, NativeMemory memory, NativeBatch batch) {
    long rows = rows();
    int heads = geometry.queryHeads(layer);
    int dim = geometry.headDim(layer);
    batch.queries(Objects.requireNonNull(queries).target(memory, rows, heads, dim, false));
    batch.outputs(Objects.requireNonNull(outputs).target(memory, rows, heads, geometry.valueDim(layer), true));
    batch.learnedSinks(learnedSinks);
    if (tokens != null) {
      batch.tokens(memory, tokens);
    } else {
      batch.tokensEach(tokensEach);
    }
    if (logSums != null) {
      batch.logSums(memory.out(logSums, (int) (rows * heads)).address());
    } else if (deviceLogSums != null) {
      batch.logSums(deviceLogSums.address());
    }
    if (masks != null) {
      batch.masks(memory, masks);
    }
    if (depths != null) {
      batch.depths(memory, depths);
    }
    if (stream != null && Objects.requireNonNull(queries).onDevice()) {
      batch.onDevice(stream.handle());
    }
  }

  private long rows() {
    if (tokens == null) {
      return Checks.product(sequences.size(), tokensEach);
    }
    long rows = 0;
    for (int each : tokens) {
      rows += each;
    }
    return rows;
  }
}
