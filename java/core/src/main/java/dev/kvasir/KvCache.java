package dev.kvasir;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvFileException;
import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.file.BlockMemory;
import dev.kvasir.file.ChainHash;
import dev.kvasir.file.FileOptions;
import dev.kvasir.file.KvBlock;
import dev.kvasir.file.ModelFingerprint;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Floats;
import dev.kvasir.internal.NativeCache;
import dev.kvasir.internal.NativeRestoring;
import dev.kvasir.internal.RowsTarget;
import dev.kvasir.internal.file.CacheTarget;
import dev.kvasir.internal.file.SequenceInput;
import dev.kvasir.internal.file.Sources;
import dev.kvasir.internal.memory.RecycledMemory;
import java.io.IOException;
import java.lang.ref.Reference;
import java.nio.FloatBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.ReadableByteChannel;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import java.util.stream.LongStream;
import org.jspecify.annotations.Nullable;

/**
 * Compressed keys and values of many sequences under one byte budget.
 *
 * <p>Memory is native and held until {@link #close}; a cache that is forgotten is freed some time after the garbage
 * collector finds it. Every method may be called from any thread.
 */
public final class KvCache implements AutoCloseable {

  /** Tokens of a page, the unit that is compressed. */
  public static final int PAGE_TOKENS = 128;

  private final KvGeometry geometry;
  private final KvMethod method;
  private final NativeCache cache;
  private final NeedsWatch needs;

  private KvCache(KvGeometry geometry, KvMethod method, NativeCache cache, NeedsWatch needs) {
    this.geometry = geometry;
    this.method = method;
    this.cache = cache;
    this.needs = needs;
  }

  /**
   * A builder for a cache of this shape.
   *
   * @param geometry the shape
   * @return a new builder
   */
  public static Builder builder(KvGeometry geometry) {
    return new Builder(geometry);
  }

  /**
   * The shape of the cache.
   *
   * @return the geometry
   */
  public KvGeometry geometry() {
    return geometry;
  }

  /**
   * How the cache compresses.
   *
   * @return the method
   */
  public KvMethod method() {
    return method;
  }

  /**
   * An empty sequence.
   *
   * @return a new sequence, to be closed by the caller
   * @throws IllegalStateException if the cache is closed
   */
  public KvSequence newSequence() {
    return new KvSequence(this, cache::newSequence);
  }

  /**
   * Appends some tokens to each of many sequences, in one layer: what {@link KvSequence#append} does for each of them,
   * in one call. All of it happens, or after an exception nothing.
   *
   * <p>The rows of a sequence follow those of the sequence before it.
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one, none of them twice
   * @param tokens of each sequence, 0 or more, not all 0
   * @param keys {@code [all tokens][kvHeads][headDim]}, after RoPE, or before it if {@link KvMethod#keysBeforeRope}
   * @param values the same shape, in a type and with strides of their own
   * @throws IllegalArgumentException if an argument is out of range, rows are too short or overlap, they are on a device,
   *     or a sequence is of another cache or listed twice
   * @throws NotFiniteException if an element is NaN, infinite or above 32752 in magnitude
   * @throws BudgetExceededException if the tokens of all sequences do not fit the budget
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void append(int layer, List<KvSequence> sequences, int[] tokens, Rows keys, Rows values) {
    Checks.require(!keys.onDevice() && !values.onDevice(), "rows on the device, and no stream");
    appendRows(layer, sequences, tokens, keys, values, null);
  }

  /**
   * {@link #append(int, List, int[], Rows, Rows)} from memory of the device that the cache is on. Returns before the work
   * is done; it waits for what is on the stream, and what is put there later waits for it. The device checks the elements
   * when it gets there, as in {@link KvSequence#append(int, DeviceBuffer, DeviceBuffer, int, DeviceStream)}.
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one, none of them twice
   * @param tokens of each sequence, 0 or more, not all 0
   * @param keys {@code [all tokens][kvHeads][headDim]}; strides are multiples of 16 bytes
   * @param values the same shape
   * @param stream the stream that the rows are made on
   * @throws IllegalArgumentException if an argument is out of range, rows are too short, overlap or are on no device, or a
   *     sequence is of another cache or listed twice
   * @throws NotFiniteException if an earlier append held NaN, infinity or a magnitude above 32752
   * @throws BudgetExceededException if the tokens of all sequences do not fit the budget
   * @throws NativeUnavailableException if the cache is on no device
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void append(
      int layer, List<KvSequence> sequences, int[] tokens, Rows keys, Rows values, DeviceStream stream) {
    Checks.require(keys.onDevice() && values.onDevice(), "a stream, and rows that are on no device");
    appendRows(layer, sequences, tokens, keys, values, stream.handle());
  }

  /**
   * Makes sequences one token longer in all layers, before a CUDA graph writes the token's rows. So a step of decoding
   * runs as a graph, appends included:
   *
   * <ol>
   *   <li>{@code extend}, then capture {@link #append(int, List, int[], Rows, Rows, DeviceStream) append} of one token of
   *       each sequence and {@code attend} with it, layer by layer, on the same stream;
   *   <li>run the graph; then for every further step {@code extend}, fill the inputs, and run it again.
   * </ol>
   *
   * <p>A captured append writes the rows of the newest token that a sequence has when the graph runs; captured attention
   * follows sequences that grow. All sequences become longer, or none does; what was reserved for them is given back
   * then. A page is sealed as {@code append} would do it, by the tokens that are there: where the method keeps no window,
   * one step later. A step that is not to be is taken back by {@link KvSequence#truncate}. Wait for the graph before
   * other calls read what it writes, and do not run it once one of its sequences is closed.
   *
   * @param sequences sequences of this cache, at least one, none of them twice; layers of each have one length
   * @param stream the stream that the graph runs on; it is not being captured now
   * @throws IllegalArgumentException if a sequence is of another cache, listed twice, was shifted, has guesses or layers
   *     of different lengths, or the stream is being captured
   * @throws NotFiniteException if an earlier append held NaN, infinity or a magnitude above 32752
   * @throws BudgetExceededException if the tokens of all sequences do not fit the budget
   * @throws NativeUnavailableException if the cache is on no device
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void extend(List<KvSequence> sequences, DeviceStream stream) {
    cache.extend(ids(sequences), stream.handle());
    Reference.reachabilityFence(sequences);
  }

  /**
   * {@link #append(int, List, int[], Rows, Rows)} to a layer whose keys and values share a row ({@link
   * KvGeometry.Builder#latent}).
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one, none of them twice
   * @param tokens of each sequence, 0 or more, not all 0
   * @param rows {@code [all tokens][headDim]}
   * @throws IllegalArgumentException if an argument is out of range, rows are too short, overlap or are on a device, keys
   *     and values of the layer share no row, or a sequence is of another cache or listed twice
   * @throws NotFiniteException if an element is NaN, infinite or above 32752 in magnitude
   * @throws BudgetExceededException if the tokens of all sequences do not fit the budget
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void append(int layer, List<KvSequence> sequences, int[] tokens, Rows rows) {
    Checks.require(!rows.onDevice(), "rows on the device, and no stream");
    appendRows(layer, sequences, tokens, rows, null, null);
  }

  /**
   * {@link #append(int, List, int[], Rows)} from memory of the device that the cache is on, as {@link #append(int, List,
   * int[], Rows, Rows, DeviceStream)}.
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one, none of them twice
   * @param tokens of each sequence, 0 or more, not all 0
   * @param rows {@code [all tokens][headDim]}; the stride is a multiple of 16 bytes
   * @param stream the stream that the rows are made on
   * @throws IllegalArgumentException if an argument is out of range, rows are too short, overlap or are on no device, keys
   *     and values of the layer share no row, or a sequence is of another cache or listed twice
   * @throws NotFiniteException if an earlier append held NaN, infinity or a magnitude above 32752
   * @throws BudgetExceededException if the tokens of all sequences do not fit the budget
   * @throws NativeUnavailableException if the cache is on no device
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void append(int layer, List<KvSequence> sequences, int[] tokens, Rows rows, DeviceStream stream) {
    Checks.require(rows.onDevice(), "a stream, and rows that are on no device");
    appendRows(layer, sequences, tokens, rows, null, stream.handle());
  }

  /** Without values where keys and values share a row. */
  private void appendRows(
      int layer,
      List<KvSequence> sequences,
      int[] tokens,
      Rows keys,
      @Nullable Rows values,
      @Nullable Long stream) {
    requireShared(layer, values == null);
    long[] ids = ids(sequences);
    Checks.require(tokens.length == ids.length, "tokens of " + tokens.length + " sequences, not " + ids.length);
    long[] counts = new long[tokens.length];
    for (int i = 0; i < tokens.length; i++) {
      counts[i] = tokens[i]; // read once: others may write to the array
      Checks.requireNotNegative("tokens", counts[i]);
    }
    long all = LongStream.of(counts).sum();
    Checks.requirePositive("tokens of all sequences", all);
    int heads = geometry.kvHeads(layer);
    int dim = geometry.headDim(layer);
    keys.require("keys", all, heads, dim, false);
    if (values != null) {
      values.require("values", all, heads, dim, false);
    }
    Rows.holding(
        () ->
            cache.append(
                layer,
                ids,
                counts,
                memory -> keys.target(memory, all, heads, dim, false),
                memory -> values == null ? RowsTarget.NONE : values.target(memory, all, heads, dim, false),
                stream),
        keys,
        values);
    Reference.reachabilityFence(sequences);
    Reference.reachabilityFence(keys);
    Reference.reachabilityFence(values);
  }

  /**
   * Attention of one query token per sequence, over many sequences in one call. Lengths may differ; a sequence may be
   * listed more than once.
   *
   * <p>The output of each query head is the sum of the values that it sees, weighted by the softmax of the scaled
   * products of query and keys. The query belongs to the sequence's newest token and sees it and all before it.
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one, none of them empty in this layer
   * @param queries {@code [sequences][queryHeads][headDim]}
   * @param outputs the same shape
   * @throws IllegalArgumentException if an argument is out of range, an array too short, a sequence of another cache
   *     or a layer empty
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void attend(int layer, List<KvSequence> sequences, float[] queries, float[] outputs) {
    attend(layer, sequences, queries, outputs, 1);
  }

  /**
   * {@link #attend(int, List, float[], float[])} on buffers; direct ones are used in place.
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one, none of them empty in this layer
   * @param queries {@code [sequences][queryHeads][headDim]} from the position on
   * @param outputs the same shape
   * @throws IllegalArgumentException if an argument is out of range, a buffer too short, in the wrong byte order or,
   *     for outputs, read-only, a sequence of another cache or a layer empty
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void attend(int layer, List<KvSequence> sequences, FloatBuffer queries, FloatBuffer outputs) {
    attend(layer, sequences, queries, outputs, 1);
  }

  /**
   * Attention of several query tokens per sequence: chunks of a prompt, or guesses to be verified. They belong to the
   * sequence's newest tokens, which must have been appended: query {@code i} sees the tokens up to position {@code
   * length - tokens + i}.
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one
   * @param queries {@code [sequences][tokens][queryHeads][headDim]}
   * @param outputs the same shape
   * @param tokens query tokens of each sequence, 1 or more and no more than the layer holds
   * @throws IllegalArgumentException if an argument is out of range, an array too short, a sequence of another cache or
   *     shorter than {@code tokens}
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void attend(int layer, List<KvSequence> sequences, float[] queries, float[] outputs, int tokens) {
    attend(layer, ids(sequences), queries, outputs, tokens);
    Reference.reachabilityFence(sequences);
  }

  /**
   * {@link #attend(int, List, float[], float[], int)} on buffers; direct ones are used in place.
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one
   * @param queries {@code [sequences][tokens][queryHeads][headDim]} from the position on
   * @param outputs the same shape
   * @param tokens query tokens of each sequence, 1 or more and no more than the layer holds
   * @throws IllegalArgumentException if an argument is out of range, a buffer too short, in the wrong byte order or,
   *     for outputs, read-only, a sequence of another cache or shorter than {@code tokens}
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void attend(int layer, List<KvSequence> sequences, FloatBuffer queries, FloatBuffer outputs, int tokens) {
    attend(layer, ids(sequences), queries, outputs, tokens);
    Reference.reachabilityFence(sequences);
  }

  /**
   * {@link #attend(int, List, float[], float[], int)} on memory of the device that the cache is on. Returns before the
   * work is done; it waits for what is on the stream, and what is put there later waits for it.
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one
   * @param queries {@code [sequences][tokens][queryHeads][headDim]}
   * @param outputs the same shape and type
   * @param tokens query tokens of each sequence, 1 or more
   * @param stream the stream that the queries are made on and the outputs used on
   * @throws IllegalArgumentException if an argument is out of range, a buffer too short, the types differ, or a sequence
   *     is of another cache or shorter than {@code tokens}
   * @throws NotFiniteException if an earlier append from the device held NaN, infinity or a magnitude above 32752
   * @throws NativeUnavailableException if the cache is on no device
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void attend(
      int layer,
      List<KvSequence> sequences,
      DeviceBuffer queries,
      DeviceBuffer outputs,
      int tokens,
      DeviceStream stream) {
    attend(layer, ids(sequences), queries, outputs, tokens, stream);
    Reference.reachabilityFence(sequences);
  }

  /**
   * All that attention can do, in one call: {@link AttendBatch}.
   *
   * @param given what to compute, of sequences of this cache
   * @throws IllegalArgumentException if something in the batch is missing or out of range, memory too short, a sequence of
   *     another cache or shorter than its query tokens; nothing has been written then
   * @throws NotFiniteException if an earlier append from the device held NaN, infinity or a magnitude above 32752
   * @throws NativeUnavailableException if rows are on a device and the cache is on none
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void attend(AttendBatch given) {
    AttendBatch batch = new AttendBatch(given); // what is checked is what is done
    Checks.layer(batch.layer(), geometry.layers());
    batch.check(geometry);
    needs.queries();
    long[] ids = ids(batch.sequences());
    batch.holding(
        () -> cache.attend(batch.layer(), ids, (memory, target) -> batch.write(geometry, memory, target)));
    Reference.reachabilityFence(batch);
  }

  /**
   * Shows queries to sequences whose method goes by them ({@code MixKvq}), without computing attention. What {@code
   * attend} computes it sees by itself; this is for a prompt whose attention is computed elsewhere, before the prompt is
   * appended. Other methods ignore it.
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one
   * @param queries {@code [sequences][tokens][queryHeads][headDim]}, after RoPE
   * @param tokens query tokens of each sequence, 1 or more
   * @throws IllegalArgumentException if an argument is out of range, an array too short or a sequence of another cache
   * @throws NotFiniteException if an element is NaN or infinite
   * @throws BudgetExceededException if there is no room to keep their means
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void observe(int layer, List<KvSequence> sequences, float[] queries, int tokens) {
    observe(layer, ids(sequences), queries, tokens);
    Reference.reachabilityFence(sequences);
  }

  /**
   * {@link #observe(int, List, float[], int)} on a buffer; a direct one is used in place.
   *
   * @param layer 0 .. layers-1
   * @param sequences sequences of this cache, at least one
   * @param queries {@code [sequences][tokens][queryHeads][headDim]} from the position on, after RoPE
   * @param tokens query tokens of each sequence, 1 or more
   * @throws IllegalArgumentException if an argument is out of range, a buffer too short or in the wrong byte order, or a
   *     sequence of another cache
   * @throws NotFiniteException if an element is NaN or infinite
   * @throws BudgetExceededException if there is no room to keep their means
   * @throws IllegalStateException if the cache or a sequence is closed
   */
  public void observe(int layer, List<KvSequence> sequences, FloatBuffer queries, int tokens) {
    observe(layer, ids(sequences), queries, tokens);
    Reference.reachabilityFence(sequences);
  }

  /**
   * What saved sequences of this cache mean, as text: geometry, codecs with their options, the content of codebooks, RoPE,
   * key scaling, the model. Sequences are restored into caches whose text is the same.
   *
   * @return one fact a line
   * @throws IllegalStateException if the cache is closed
   */
  public String description() {
    return cache.description();
  }

  /**
   * The same in 32 bytes: the SHA-256 of {@link #description}.
   *
   * @return a new array
   * @throws IllegalStateException if the cache is closed
   */
  public byte[] fingerprint() {
    return cache.fingerprint();
  }

  /**
   * A sequence from a file. It is exactly what was saved, whatever backend this cache is on, or nothing has changed.
   *
   * @param path what {@link KvSequence#save(Path)} wrote
   * @return a new sequence, to be closed by the caller
   * @throws KvFileException if the file is damaged, cut off, or of another kind of cache or model
   * @throws BudgetExceededException if the sequence does not fit the budget
   * @throws IOException if the file cannot be read
   * @throws IllegalStateException if the cache is closed
   */
  public KvSequence restore(Path path) throws IOException {
    return restore(path, FileOptions.defaults());
  }

  /**
   * {@link #restore(Path)} with a listener, and until it is cancelled.
   *
   * @param path what {@link KvSequence#save(Path)} wrote
   * @param options progress and cancellation count
   * @return a new sequence, to be closed by the caller
   * @throws KvFileException if the file is damaged, cut off, or of another kind of cache or model, or nobody wanted more
   * @throws BudgetExceededException if the sequence does not fit the budget
   * @throws IOException if the file cannot be read
   * @throws IllegalStateException if the cache is closed
   */
  public KvSequence restore(Path path, FileOptions options) throws IOException {
    try (FileChannel channel = Sources.open(path)) {
      return restore(channel, channel.size(), options);
    }
  }

  /**
   * {@link #restore(Path)} from a channel, of which no byte after the sequence's last is read.
   *
   * @param channel blocking; stays open
   * @param options progress and cancellation count
   * @return a new sequence, to be closed by the caller
   * @throws KvFileException if the bytes are damaged, cut off, or of another kind of cache or model, or nobody wanted more
   * @throws BudgetExceededException if the sequence does not fit the budget
   * @throws IOException if the channel cannot be read
   * @throws IllegalStateException if the cache is closed
   */
  public KvSequence restore(ReadableByteChannel channel, FileOptions options) throws IOException {
    return restore(channel, -1, options);
  }

  /**
   * {@link #restore(Path, FileOptions)} on the executor of the options. Cancelling the future ends it.
   *
   * @param path what {@link KvSequence#save(Path)} wrote
   * @param options progress, cancellation and executor count
   * @return the sequence to come, to be closed by the caller
   */
  public CompletableFuture<KvSequence> restoreAsync(Path path, FileOptions options) {
    return FileWork.run(options, KvSequence::close, now -> restore(path, now));
  }

  private KvSequence restore(ReadableByteChannel channel, long total, FileOptions options) throws IOException {
    try (NativeRestoring restoring = cache.restore()) {
      SequenceInput.read(
          channel,
          total,
          FileWork.transfer(options),
          new CacheTarget(restoring, cache.description(), cache.mostBlockBytes(), cache.mostStateBytes()));
      return new KvSequence(this, restoring::finish);
    }
  }

  /**
   * The names of the blocks of a text, in order: what a store keeps them under.
   *
   * @param tokens the ids from the beginning on; those that fill no block have no name
   * @param salt whose blocks they are; may be empty
   * @return a name for each whole block
   * @throws IllegalStateException if the cache is closed
   */
  public List<ChainHash> chain(int[] tokens, byte[] salt) {
    return ChainHash.chain(cache.fingerprint(), salt, method.sinks(), PAGE_TOKENS, tokens);
  }

  /**
   * A sequence of a text's first blocks. It is as one that was cut after the last of them ({@link KvSequence#truncate}),
   * and has seen no queries.
   *
   * @param blocks from the first on, without gaps: what {@link KvSequence#exportBlocks} gave, wherever it has been
   * @return a new sequence, to be closed by the caller
   * @throws KvFileException if a block is damaged, of another kind of cache or model, of other tokens than its name says,
   *     or does not follow the one before it; nothing has changed then
   * @throws BudgetExceededException if the sequence does not fit the budget
   * @throws IllegalArgumentException if there are none
   * @throws IllegalStateException if the cache is closed
   */
  public KvSequence attachBlocks(List<KvBlock> blocks) {
    return attach(cache::restore, blocks);
  }

  /**
   * {@link #attachBlocks(List)} where some blocks are here already: those of a sequence of this cache. Both share its pages.
   *
   * @param behind a sequence that ends with a block, neither guessing nor with moved positions; it may go on, or be closed
   * @param blocks those that follow, without gaps
   * @return a new sequence of all of them, to be closed by the caller
   * @throws KvFileException as without a sequence, and so of others; nothing has changed then
   * @throws IllegalArgumentException if there are none, or the sequence does not end with a block or is one of another cache
   */
  public KvSequence attachBlocks(KvSequence behind, List<KvBlock> blocks) {
    Checks.require(behind.cache() == this, "a sequence of another cache");
    return attach(behind::restoreBehind, blocks);
  }

  /**
   * Memory for blocks that wait to be attached: plain memory for a cache on a CPU. For one on a device it is pinned as long
   * as there is some, so that blocks are copied from where they are.
   *
   * @param most the most bytes of it that are pinned
   * @return the memory, to be closed by the caller, before the cache or after it
   */
  public BlockMemory blockMemory(long most) {
    return RecycledMemory.of(cache::imageMemory, most);
  }

  private KvSequence attach(Supplier<NativeRestoring> begin, List<KvBlock> blocks) {
    Checks.require(!blocks.isEmpty(), "no blocks");
    try (NativeRestoring restoring = begin.get()) {
      blocks.forEach(block -> restoring.addBlock(block.bytes(), block.hash().bytes()));
      return new KvSequence(this, restoring::finish);
    }
  }

  /**
   * What the cache holds and what it has computed. Costs a few native calls per layer.
   *
   * @return a snapshot
   * @throws IllegalStateException if the cache is closed
   */
  public KvStats stats() {
    return cache.stats(stats -> StatsReader.read(stats, geometry.layers()));
  }

  /**
   * Frees the cache and all its sequences, which then throw {@link IllegalStateException}. Calls under way in other
   * threads finish first; this one does not wait for them. Closing again does nothing.
   */
  @Override
  public void close() {
    cache.close();
  }

  @Override
  public String toString() {
    return "KvCache[" + method.name() + ", " + geometry + (cache.isClosed() ? ", closed]" : "]");
  }

  /** Refuses keys and values for layers where they share a row, and one row where they do not. */
  void requireShared(int layer, boolean shared) {
    if (geometry.latent(layer) != shared) {
      throw new IllegalArgumentException(
          "layer " + layer + (shared ? " has keys and values apart" : " has one row for keys and values"));
    }
  }

  void attend(int layer, long[] ids, float[] queries, float[] outputs, int tokens) {
    long needed = queryElements(layer, ids.length, tokens);
    long written = outputElements(layer, ids.length, tokens);
    Floats.require("queries", queries, needed);
    Floats.require("outputs", outputs, written);
    cache.attend(layer, ids, queries, outputs, (int) needed, (int) written, tokens);
  }

  void attend(int layer, long[] ids, FloatBuffer queries, FloatBuffer outputs, int tokens) {
    long needed = queryElements(layer, ids.length, tokens);
    long written = outputElements(layer, ids.length, tokens);
    Floats.require("queries", queries, needed);
    Floats.requireWritable("outputs", outputs, written);
    cache.attend(layer, ids, queries, outputs, (int) needed, (int) written, tokens);
  }

  void attend(
      int layer, long[] ids, DeviceBuffer queries, DeviceBuffer outputs, int tokens, DeviceStream stream) {
    long needed = queryElements(layer, ids.length, tokens);
    queries.require("queries", needed);
    outputs.require("outputs", outputElements(layer, ids.length, tokens));
    if (queries.type() != outputs.type()) {
      throw new IllegalArgumentException("queries are " + queries.type() + " and outputs " + outputs.type());
    }
    Objects.requireNonNull(stream, "stream");
    cache.attend(
        layer, ids, queries.address(), outputs.address(), queries.type().code(), tokens, stream.handle());
  }

  void observe(int layer, long[] ids, float[] queries, int tokens) {
    long needed = queryElements(layer, ids.length, tokens);
    Floats.require("queries", queries, needed);
    cache.observe(layer, ids, queries, (int) needed, tokens);
  }

  void observe(int layer, long[] ids, FloatBuffer queries, int tokens) {
    long needed = queryElements(layer, ids.length, tokens);
    Floats.require("queries", queries, needed);
    cache.observe(layer, ids, queries, (int) needed, tokens);
  }

  NativeCache nativeCache() {
    return cache;
  }

  NeedsWatch needs() {
    return needs;
  }

  private long queryElements(int layer, int sequences, int tokens) {
    Checks.requirePositive("tokens", tokens);
    needs.queries();
    return Checks.product(Checks.product(sequences, tokens), geometry.querySize(layer));
  }

  private long outputElements(int layer, int sequences, int tokens) {
    return Checks.product(Checks.product(sequences, tokens), geometry.outputSize(layer));
  }

  private long[] ids(List<KvSequence> sequences) {
    Checks.require(!sequences.isEmpty(), "no sequences");
    return sequences.stream().mapToLong(sequence -> sequence.idIn(this)).toArray();
  }

  /** Settings for a cache. Not for use by several threads. */
  public static final class Builder {

    private final KvGeometry geometry;
    private final Map<Integer, Long> layerBudgets = new TreeMap<>();
    private KvMethod method = () -> "f16";
    private long budget;
    private String backend = "auto";
    private Precision precision = Precision.EXACT;
    private int threads;
    private byte[] model = {};
    private @Nullable Boolean keysBeforeRope;
    private @Nullable KvListener listener;

    private Builder(KvGeometry geometry) {
      this.geometry = Objects.requireNonNull(geometry, "geometry");
    }

    /**
     * How to compress. {@link dev.kvasir.method.HalfPrecision}, which does not, is the default.
     *
     * @param method the method
     * @return this builder
     */
    public Builder method(KvMethod method) {
      this.method = Objects.requireNonNull(method, "method");
      return this;
    }

    /**
     * The most bytes that all sequences together may hold: codes, parameters, windows and sinks. No limit is the
     * default.
     *
     * @param bytes 1 or more
     * @return this builder
     * @throws IllegalArgumentException if not positive
     */
    public Builder budgetBytes(long bytes) {
      Checks.requirePositive("budgetBytes", bytes);
      this.budget = bytes;
      return this;
    }

    /**
     * The most bytes that one layer of all sequences may hold, beside the common budget. No limit is the default.
     *
     * @param layer 0 .. layers-1
     * @param bytes 1 or more
     * @return this builder
     * @throws IllegalArgumentException if there is no such layer or the number is not positive
     */
    public Builder layerBudgetBytes(int layer, long bytes) {
      Checks.requirePositive("layerBudgetBytes", bytes);
      layerBudgets.put(Checks.layer(layer, geometry.layers()), bytes);
      return this;
    }

    /**
     * The backend to run on: {@code "auto"}, the default, for {@link Kvasir#defaultBackend}, or a name of {@link
     * Kvasir#backends}.
     *
     * @param name the name
     * @return this builder
     */
    public Builder backend(String name) {
      this.backend = Objects.requireNonNull(name, "name");
      return this;
    }

    /**
     * How finely attention computes. {@link Precision#EXACT} is the default.
     *
     * @param precision the precision
     * @return this builder
     */
    public Builder precision(Precision precision) {
      this.precision = Objects.requireNonNull(precision, "precision");
      return this;
    }

    /**
     * Threads that compute for this cache alone, the caller's own included. By default the cache shares those of {@link
     * Kvasir#setThreads} with all others. Calls from many threads share the cache's threads beside their own, so with 1
     * each call runs on its caller's thread alone, and as many run at once as there are callers. Results do not depend on
     * it, to the bit.
     *
     * @param threads 1..1024
     * @return this builder
     * @throws IllegalArgumentException if out of range
     */
    public Builder threads(int threads) {
      Checks.require(threads >= 1 && threads <= 1024, "threads must be 1..1024, not " + threads);
      this.threads = threads;
      return this;
    }

    /**
     * The model whose keys and values the cache will hold: sequences that another one made are not restored ({@link
     * KvCache#restore(Path)}). Without it all caches of one shape and method take each other's.
     *
     * @param fingerprint the model's
     * @return this builder
     */
    public Builder model(ModelFingerprint fingerprint) {
      this.model = fingerprint.bytes();
      return this;
    }

    /**
     * Declares on which side of RoPE the keys are that will be appended, so that a method that wants the other is refused.
     * Without a declaration a method that wants them before RoPE says so in a warning.
     *
     * @param before whether keys are appended as they are before RoPE
     * @return this builder
     */
    public Builder keysBeforeRope(boolean before) {
      this.keysBeforeRope = before;
      return this;
    }

    /**
     * Who is told of appends, attends and refusals, for metrics. Nobody is the default, and costs nothing.
     *
     * @param listener the listener
     * @return this builder
     */
    public Builder listener(KvListener listener) {
      this.listener = Objects.requireNonNull(listener, "listener");
      return this;
    }

    /**
     * The cache. Loads the native library if it is not loaded yet.
     *
     * @return a new cache, to be closed by the caller
     * @throws IllegalArgumentException if the method names a codec, width or option that does not exist or does not
     *     fit the geometry, lacks a codebook, or wants keys from the other side of RoPE than was declared
     * @throws NativeUnavailableException if the native library cannot be loaded, the backend cannot run here or the system
     *     does not allow so many threads
     */
    public KvCache build() {
      CacheSettings settings = new CacheSettings(geometry, method, budget, layerBudgets, backend, precision, threads, model);
      NeedsWatch needs = NeedsWatch.of(geometry, method, keysBeforeRope);
      return new KvCache(geometry, method, settings.create(listener), needs);
    }
  }
}
