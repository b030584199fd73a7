package dev.kvasir;

import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvFileException;
import dev.kvasir.error.NativeUnavailableException;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.file.ChainHash;
import dev.kvasir.file.FileOptions;
import dev.kvasir.file.KvBlock;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.Floats;
import dev.kvasir.internal.Lifetime;
import dev.kvasir.internal.NativeCache;
import dev.kvasir.internal.NativeRestoring;
import dev.kvasir.internal.NativeSaving;
import dev.kvasir.internal.Shorts;
import dev.kvasir.internal.file.SequenceOutput;
import dev.kvasir.internal.json.FileReplacement;
import java.io.IOException;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * One stream of tokens in a cache. Each layer has a length of its own, because engines append layer by layer.
 *
 * <p>Appended elements are rounded to float16. The newest tokens wait in that form; 128 of them become a compressed
 * page. What a sequence holds does not depend on how a stream of tokens is cut into appends, but for methods that learn
 * from the prompt ({@code PatternKv}): to them the prompt is what is there when the first page is compressed.
 *
 * <p>Every method may be called from any thread: calls that change the sequence exclude each other and its readers,
 * attends overlap. A sequence that is forgotten is released some time after the garbage collector finds it.
 *
 * <p>Arrays and buffers are read once during a call; what another thread writes to them meanwhile may or may not count,
 * and does no harm. Outputs may be written over queries. Direct buffers are used in place, but for those of an Arena that
 * threads share (JDK 22 and newer), which one of them could close: these are copied. A buffer whose Arena is closed, or
 * confined to another thread, is refused with {@link IllegalStateException}. A mapped file must not be cut shorter during
 * a call that uses it in place: the system then ends the process, as it does where any native code reads what is gone.
 *
 * <p>An exception in the middle of a step leaves layers of different lengths: {@link #rollback} makes them even, and
 * {@link #reserve} before the step sees to it that no budget is the cause.
 */
public final class KvSequence implements AutoCloseable {

  /** What every JVM can allocate. */
  private static final int MAX_ARRAY = Integer.MAX_VALUE - 8;
  private static final ByteBuffer EMPTY = ByteBuffer.allocateDirect(0);

  private final KvCache cache;
  private final NativeCache target;
  private final long id;
  private final long[] ids;
  private final Lifetime lifetime;

  /** Of what the maker makes, whose id it leaves in the array. All that may fail in Java comes before that. */
  KvSequence(KvCache cache, Consumer<long[]> maker) {
    this.cache = cache;
    this.target = cache.nativeCache();
    this.ids = new long[1];
    this.lifetime = new Lifetime(this, "the sequence", target.releaser(ids));
    try {
      maker.accept(ids);
    } catch (Throwable e) {
      lifetime.close();
      throw e;
    }
    this.id = ids[0];
  }

  /**
   * The cache that the sequence is part of.
   *
   * @return the cache
   */
  public KvCache cache() {
    return cache;
  }

  /**
   * Appends token rows to a layer.
   *
   * <p>Keys come as the model has them <b>after</b> RoPE, with every method but those whose {@link
   * KvMethod#keysBeforeRope} says <b>before</b>: {@code CommVq}. Nothing can tell the two apart later; {@link KvCache.Builder#keysBeforeRope} has the cache check that method and caller mean the same.
   *
   * @param layer 0 .. layers-1
   * @param keys {@code [tokens][kvHeads][headDim]}, after RoPE, or before it if {@link KvMethod#keysBeforeRope}
   * @param values the same shape
   * @param tokens 1 or more
   * @throws IllegalArgumentException if an argument is out of range or an array too short
   * @throws NotFiniteException if an element is NaN, infinite or above 32752 in magnitude
   * @throws BudgetExceededException if the tokens do not fit the budget
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void append(int layer, float[] keys, float[] values, int tokens) {
    long needed = appendElements(layer, tokens);
    Floats.require("keys", keys, needed);
    Floats.require("values", values, needed);
    run(() -> target.append(id, layer, keys, values, (int) needed, tokens));
  }

  /**
   * {@link #append(int, float[], float[], int)} from buffers; direct ones are read in place (see {@link KvSequence}).
   *
   * @param layer 0 .. layers-1
   * @param keys {@code [tokens][kvHeads][headDim]} from the position on, after or before RoPE as there
   * @param values the same shape
   * @param tokens 1 or more
   * @throws IllegalArgumentException if an argument is out of range or a buffer too short or in the wrong byte order
   * @throws NotFiniteException if an element is NaN, infinite or above 32752 in magnitude
   * @throws BudgetExceededException if the tokens do not fit the budget
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void append(int layer, FloatBuffer keys, FloatBuffer values, int tokens) {
    long needed = appendElements(layer, tokens);
    Floats.require("keys", keys, needed);
    Floats.require("values", values, needed);
    run(() -> target.append(id, layer, keys, values, (int) needed, tokens));
  }

  /**
   * {@link #append(int, float[], float[], int)} from 16-bit elements; direct buffers are read in place (see {@link KvSequence}).
   *
   * @param layer 0 .. layers-1
   * @param keys {@code [tokens][kvHeads][headDim]} from the position on, after or before RoPE as there
   * @param values the same shape
   * @param tokens 1 or more
   * @param type what the bits mean: {@link ElementType#FLOAT16} or {@link ElementType#BFLOAT16}
   * @throws IllegalArgumentException if an argument is out of range or a buffer too short or in the wrong byte order
   * @throws NotFiniteException if an element is NaN, infinite or above 32752 in magnitude
   * @throws BudgetExceededException if the tokens do not fit the budget
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void append(int layer, ShortBuffer keys, ShortBuffer values, int tokens, ElementType type) {
    long needed = appendElements(layer, tokens);
    Shorts.require("keys", keys, needed);
    Shorts.require("values", values, needed);
    if (type.bytes() != Short.BYTES) {
      throw new IllegalArgumentException("the elements of a ShortBuffer are no " + type);
    }
    run(() -> target.append(id, layer, keys, values, (int) needed, tokens, type.code()));
  }

  /**
   * Appends rows to a layer whose keys and values share one ({@link KvGeometry.Builder#latent}).
   *
   * @param layer 0 .. layers-1
   * @param rows {@code [tokens][headDim]}, in memory of this machine
   * @param tokens 1 or more
   * @throws IllegalArgumentException if an argument is out of range, rows are too short or on a device, or keys and values
   *     of the layer share no row
   * @throws NotFiniteException if an element is NaN, infinite or above 32752 in magnitude
   * @throws BudgetExceededException if the tokens do not fit the budget
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void append(int layer, Rows rows, int tokens) {
    Checks.requirePositive("tokens", tokens);
    cache.append(layer, List.of(this), new int[] {tokens}, rows);
  }

  /**
   * {@link #append(int, float[], float[], int)} from memory of the device that the cache is on. Returns before the work
   * is done; it waits for what is on the stream, and what is put there later waits for it.
   *
   * <p>The device checks the elements when it gets there. What an append would refuse is stored as 0, and the next call
   * of the cache that appends or attends throws a {@link NotFiniteException}, once.
   *
   * @param layer 0 .. layers-1
   * @param keys {@code [tokens][kvHeads][headDim]}, after or before RoPE as there
   * @param values the same shape and type
   * @param tokens 1 or more
   * @param stream the stream that the rows are made on
   * @throws IllegalArgumentException if an argument is out of range, a buffer too short or the types differ
   * @throws NotFiniteException if an earlier append held NaN, infinity or a magnitude above 32752
   * @throws BudgetExceededException if the tokens do not fit the budget
   * @throws NativeUnavailableException if the cache is on no device
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void append(int layer, DeviceBuffer keys, DeviceBuffer values, int tokens, DeviceStream stream) {
    long needed = appendElements(layer, tokens);
    keys.require("keys", needed);
    values.require("values", needed);
    if (keys.type() != values.type()) {
      throw new IllegalArgumentException("keys are " + keys.type() + " and values " + values.type());
    }
    Objects.requireNonNull(stream, "stream");
    run(
        () ->
            target.append(
                id, layer, keys.address(), values.address(), keys.type().code(), tokens, stream.handle()));
  }

  /**
   * {@link #attend(int, float[], float[])} on memory of the device that the cache is on: {@link KvCache#attend(int,
   * java.util.List, DeviceBuffer, DeviceBuffer, int, DeviceStream)} for this sequence and one query token.
   *
   * @param layer 0 .. layers-1
   * @param query {@code [queryHeads][headDim]}
   * @param output the same shape and type
   * @param stream the stream that the query is made on and the output used on
   * @throws IllegalArgumentException if an argument is out of range, a buffer too short, the types differ or the layer
   *     is empty
   * @throws NativeUnavailableException if the cache is on no device
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void attend(int layer, DeviceBuffer query, DeviceBuffer output, DeviceStream stream) {
    lifetime.requireOpen();
    cache.attend(layer, ids, query, output, 1, stream);
    Reference.reachabilityFence(this);
  }

  /**
   * Attention of the newest token's query over all tokens that the layer holds.
   *
   * @param layer 0 .. layers-1
   * @param query {@code [queryHeads][headDim]}
   * @param output the same shape
   * @throws IllegalArgumentException if an argument is out of range, an array too short or the layer empty
   * @throws IllegalStateException if the sequence or its cache is closed
   * @see KvCache#attend(int, java.util.List, float[], float[])
   */
  public void attend(int layer, float[] query, float[] output) {
    attend(layer, query, output, 1);
  }

  /**
   * {@link #attend(int, float[], float[])} on buffers; direct ones are used in place (see {@link KvSequence}).
   *
   * @param layer 0 .. layers-1
   * @param query {@code [queryHeads][headDim]} from the position on
   * @param output the same shape
   * @throws IllegalArgumentException if an argument is out of range, a buffer too short, in the wrong byte order or,
   *     for the output, read-only, or the layer empty
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void attend(int layer, FloatBuffer query, FloatBuffer output) {
    attend(layer, query, output, 1);
  }

  /**
   * Attention of the newest {@code tokens} tokens' queries: query {@code i} sees the tokens up to position {@code
   * length - tokens + i}.
   *
   * @param layer 0 .. layers-1
   * @param queries {@code [tokens][queryHeads][headDim]}
   * @param outputs the same shape
   * @param tokens 1 or more, no more than the layer holds
   * @throws IllegalArgumentException if an argument is out of range or an array too short
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void attend(int layer, float[] queries, float[] outputs, int tokens) {
    lifetime.requireOpen();
    cache.attend(layer, ids, queries, outputs, tokens);
    Reference.reachabilityFence(this);
  }

  /**
   * {@link #attend(int, float[], float[], int)} on buffers; direct ones are used in place (see {@link KvSequence}).
   *
   * @param layer 0 .. layers-1
   * @param queries {@code [tokens][queryHeads][headDim]} from the position on
   * @param outputs the same shape
   * @param tokens 1 or more, no more than the layer holds
   * @throws IllegalArgumentException if an argument is out of range or a buffer too short, in the wrong byte order
   *     or, for outputs, read-only
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void attend(int layer, FloatBuffer queries, FloatBuffer outputs, int tokens) {
    lifetime.requireOpen();
    cache.attend(layer, ids, queries, outputs, tokens);
    Reference.reachabilityFence(this);
  }

  /**
   * Shows queries to a method that goes by them, without computing attention: {@link KvCache#observe(int,
   * java.util.List, float[], int)} for this sequence.
   *
   * @param layer 0 .. layers-1
   * @param queries {@code [tokens][queryHeads][headDim]}, after RoPE
   * @param tokens 1 or more
   * @throws IllegalArgumentException if an argument is out of range or an array too short
   * @throws NotFiniteException if an element is NaN or infinite
   * @throws BudgetExceededException if there is no room to keep their means
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void observe(int layer, float[] queries, int tokens) {
    lifetime.requireOpen();
    cache.observe(layer, ids, queries, tokens);
    Reference.reachabilityFence(this);
  }

  /**
   * {@link #observe(int, float[], int)} on a buffer; a direct one is used in place (see {@link KvSequence}).
   *
   * @param layer 0 .. layers-1
   * @param queries {@code [tokens][queryHeads][headDim]} from the position on, after RoPE
   * @param tokens 1 or more
   * @throws IllegalArgumentException if an argument is out of range or a buffer too short or in the wrong byte order
   * @throws NotFiniteException if an element is NaN or infinite
   * @throws BudgetExceededException if there is no room to keep their means
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void observe(int layer, FloatBuffer queries, int tokens) {
    lifetime.requireOpen();
    cache.observe(layer, ids, queries, tokens);
    Reference.reachabilityFence(this);
  }

  /**
   * A second sequence with the same tokens. Compressed pages are shared, and 16-bit rows until one of the two appends:
   * that copies a block of 16 tokens in each layer at most. The two go their own ways.
   *
   * @return a new sequence, to be closed by the caller
   * @throws BudgetExceededException if what a method keeps of the queries seen (MixKVQ) does not fit the budget a second
   *     time
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public KvSequence fork() {
    return call(() -> new KvSequence(cache, made -> target.fork(id, made)));
  }

  /**
   * Cuts every layer to at most this many tokens. Shorter layers stay as they are. A compressed page that the cut goes
   * through is reopened: its remaining tokens keep the values that they have been compressed to, and take 16 bits each
   * from then on. No budget stops a cut: where those bits take more than what goes, they count beyond the budget, by less
   * than a page of 16 bits a layer, and calls that would need more are refused until they fit. After an exception nothing
   * has changed in any layer. Which moves of positions stay, {@link #shift} says.
   *
   * @param length tokens to keep, 0 or more
   * @throws IllegalArgumentException if negative, or if a sliding-window layer has dropped tokens that the shorter
   *     sequence would see; a step back of 128 tokens from the longest that it has been is always possible
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void truncate(long length) {
    Checks.requireNotNegative("length", length);
    run(() -> target.truncate(id, length));
  }

  /**
   * Takes room for this many more tokens in every layer, however they are cut into appends, so that no budget stops a
   * step half way. What is not used counts as held until the tokens have come, or until the sequence is forked,
   * truncated or rolled back; {@code reserve(0)} gives it back. Where pages can shrink, room is that for the narrowest:
   * they may begin wider, but what they can give up for tokens to come is nobody else's. Guesses take more than tokens
   * that are compressed: for them, reserve after {@link #guess}.
   *
   * @param tokens tokens to be appended to each layer, 0 or more
   * @throws BudgetExceededException if there is no room for them in all layers; nothing has changed then, but that a
   *     {@code reserve} before it is over
   * @throws IllegalArgumentException if negative
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void reserve(long tokens) {
    Checks.requireNotNegative("tokens", tokens);
    run(() -> target.reserve(id, tokens));
  }

  /**
   * Cuts every layer to the length that all of them have: what a step that broke off had appended goes. Exact where no
   * layer has compressed a page over these tokens; where one has, what remains of the page is as {@link #truncate}
   * leaves it. No budget stops it.
   *
   * @return the length of all layers now
   * @throws IllegalArgumentException if a sliding-window layer has dropped tokens that the shorter sequence would see
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public long rollback() {
    return call(() -> target.rollback(id));
  }

  /**
   * Speculative decoding: tokens that are appended from now on are guesses, 64 at most, until {@link #keep} says which of
   * them stay. They may be a tree, attended with by {@link AttendBatch#masks}. All guesses, and tokens that would be
   * compressed with them, stay in 16 bits meanwhile. A {@link #truncate} or {@link #rollback} that leaves no guess ends
   * this.
   *
   * @throws IllegalArgumentException if layers are of different lengths, or there are guesses already
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void guess() {
    run(() -> target.guess(id));
  }

  /**
   * Ends {@link #guess}: these guesses stay, and the others go. The sequence is then as if those alone had been appended,
   * in one call a layer, to the bit. No budget stops it; a page that is to be compressed but has no room waits for the next
   * append.
   *
   * @param kept the guesses that stay, counted from 0, ascending; none of them for none
   * @throws IllegalArgumentException if one of them does not exist or they do not ascend, if layers are of different
   *     lengths, or if nothing was guessed
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void keep(int... kept) {
    int[] copy = kept.clone();
    run(() -> target.keep(id, copy));
  }

  /**
   * Moves the positions of the tokens from one on, and of those to be appended, without touching what is stored. For
   * methods that store keys before RoPE in all layers, such as {@code CommVq}. Moves add up; forks and saved sequences
   * have them, blocks have not.
   *
   * <p>A later {@link #truncate} or {@link #rollback} forgets moves whose first token lies behind the new end, be it there
   * or not, and keeps the others: a move that begins just there has no token left, and moves those that are appended next.
   * So {@code shift(n, d)} and {@code truncate(n)} in this order leave a gap of {@code d} positions before what follows,
   * and {@code truncate(n - 1)} leaves none. {@link #keep} forgets no move.
   *
   * @param first the first token to move, 0 or more; 0 moves the whole sequence
   * @param offset how far, up or down
   * @throws IllegalArgumentException if an argument is out of range, or a layer stores keys after RoPE
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void shift(long first, long offset) {
    Checks.requireNotNegative("first", first);
    run(() -> target.shift(id, first, offset));
  }

  /**
   * Tokens in one layer.
   *
   * @param layer 0 .. layers-1
   * @return the number of tokens
   * @throws IllegalArgumentException if there is no such layer
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public long length(int layer) {
    Checks.layer(layer, cache.geometry().layers());
    return call(() -> target.length(id, layer));
  }

  /**
   * Tokens that every layer has. Costs a native call per layer.
   *
   * @return the length of the shortest layer
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public long length() {
    return call(
        () -> {
          long shortest = Long.MAX_VALUE;
          for (int layer = 0; layer < cache.geometry().layers(); layer++) {
            shortest = Math.min(shortest, target.length(id, layer));
          }
          return shortest;
        });
  }

  /**
   * Decoded rows: what attention computes with. For inspection and export, not for speed.
   *
   * @param layer 0 .. layers-1
   * @param side keys or values
   * @param first the first token's position
   * @param tokens 1 or more
   * @return {@code [tokens][kvHeads][headDim]}; of values that share a row with keys, {@code [tokens][valueDim]}
   * @throws IllegalArgumentException if the layer does not hold these tokens or they do not fit an array
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public float[] read(int layer, Side side, long first, int tokens) {
    Objects.requireNonNull(side, "side");
    long needed = rowElements(layer, tokens);
    if (side == Side.VALUES && cache.geometry().latent(layer)) {
      needed = (long) tokens * cache.geometry().valueDim(layer);
    }
    Checks.requireNotNegative("first", first);
    if (needed > MAX_ARRAY) {
      throw new IllegalArgumentException(
          needed + " elements do not fit an array: read fewer than " + tokens + " tokens at a time");
    }
    if (first > length(layer) - tokens) {
      throw new IllegalArgumentException(
          "tokens " + first + " .. " + (first + tokens - 1) + " of " + length(layer) + " in layer " + layer);
    }
    float[] rows = new float[(int) needed];
    run(() -> target.read(id, layer, side.code(), first, tokens, rows));
    return rows;
  }

  /**
   * Compressed pages that a layer holds. Sliding-window layers drop old ones.
   *
   * @param layer 0 .. layers-1
   * @return the number of pages
   * @throws IllegalArgumentException if there is no such layer
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public long pageCount(int layer) {
    Checks.layer(layer, cache.geometry().layers());
    return call(() -> target.pageCount(id, layer));
  }

  /**
   * The stored bytes of one head's side of a page, in the layout of {@code docs/format.md}.
   *
   * @param layer 0 .. layers-1
   * @param page 0 .. pageCount-1, the oldest held page first
   * @param side keys or values
   * @param kvHead 0 .. kvHeads-1
   * @return a copy
   * @throws IllegalArgumentException if there is no such layer, page or head
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public byte[] readPage(int layer, long page, Side side, int kvHead) {
    Objects.requireNonNull(side, "side");
    Checks.layer(layer, cache.geometry().layers());
    Checks.requireNotNegative("page", page);
    Checks.requireNotNegative("kvHead", kvHead);
    return call(() -> target.readPage(id, layer, page, side.code(), kvHead));
  }

  /**
   * The vectors that a layer's codec keeps beside the pages of one head's side, such as the patterns of {@link
   * dev.kvasir.method.PatternKv}. For inspection.
   *
   * @param layer 0 .. layers-1
   * @param side keys or values
   * @param kvHead 0 .. kvHeads-1
   * @return {@code [vectors][headDim]}, the oldest first; empty where there are none
   * @throws IllegalArgumentException if there is no such layer or head
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public float[] readTable(int layer, Side side, int kvHead) {
    Objects.requireNonNull(side, "side");
    int headDim = cache.geometry().headDim(layer);
    Checks.requireNotNegative("kvHead", kvHead);
    return call(() -> target.readTable(id, layer, side.code(), kvHead, headDim));
  }

  /**
   * Saves the sequence to a file, whole or not at all: whoever opens it, after whatever happened, finds the old file or the
   * new one. The sequence may go on meanwhile; what is saved is what it is now.
   *
   * @param path the file; one that is there is replaced
   * @throws IOException if it cannot be written; one that was there is as before
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void save(Path path) throws IOException {
    save(path, FileOptions.defaults());
  }

  /**
   * {@link #save(Path)} with token ids, a listener, and until it is cancelled.
   *
   * @param path the file; one that is there is replaced
   * @param options all but the executor count
   * @throws KvFileException if nobody wanted more of it; no file was written then
   * @throws IOException if it cannot be written; one that was there is as before
   * @throws IllegalArgumentException if there are more token ids than tokens
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void save(Path path, FileOptions options) throws IOException {
    try (NativeSaving saving = snapshot(options)) {
      FileReplacement.write(path, channel -> write(saving, channel, options));
    }
  }

  /**
   * {@link #save(Path, FileOptions)} to a channel.
   *
   * @param channel blocking; stays open
   * @param options all but the executor count
   * @throws KvFileException if nobody wanted more of it
   * @throws IOException if it cannot be written
   * @throws IllegalArgumentException if there are more token ids than tokens
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public void save(WritableByteChannel channel, FileOptions options) throws IOException {
    try (NativeSaving saving = snapshot(options)) {
      write(saving, channel, options);
    }
  }

  /**
   * {@link #save(Path, FileOptions)} on the executor of the options. What is saved is what the sequence is at this call,
   * which copies its newest tokens and waits for nothing else: decoding goes on, and the sequence may be closed.
   * Cancelling the future ends it.
   *
   * @param path the file; one that is there is replaced
   * @param options how
   * @return completes when the file is there
   * @throws IllegalArgumentException if there are more token ids than tokens
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public CompletableFuture<Void> saveAsync(Path path, FileOptions options) {
    NativeSaving saving = snapshot(options);
    CompletableFuture<Void> done =
        FileWork.run(
            options,
            nothing -> {},
            now -> {
              FileReplacement.write(path, channel -> write(saving, channel, now));
              return null;
            });
    done.whenComplete((nothing, failure) -> saving.close());
    return done;
  }

  /**
   * The blocks of the sequence for a store: those of {@code first .. first + count - 1} that are whole by now. Where {@link
   * #shift} has moved positions, blocks do not say so: a sequence of them has its tokens where they first were.
   *
   * @param tokens the sequence's token ids from the beginning on, which name them
   * @param salt whose blocks they are; may be empty
   * @param first the first block wanted
   * @param count how many at most
   * @return the blocks, in memory of their own
   * @throws IllegalArgumentException if an argument is negative
   * @throws IllegalStateException if the sequence or its cache is closed
   */
  public List<KvBlock> exportBlocks(int[] tokens, byte[] salt, int first, int count) {
    Checks.requireNotNegative("first", first);
    Checks.requireNotNegative("count", count);
    List<ChainHash> hashes = cache.chain(tokens, salt);
    List<KvBlock> blocks = new ArrayList<>();
    try (NativeSaving saving = call(() -> target.save(id))) {
      long end = Math.min(Math.min(hashes.size(), saving.wholeBlocks()), (long) first + count);
      for (int i = first; i < end; i++) {
        ChainHash hash = hashes.get(i);
        ByteBuffer bytes = ByteBuffer.allocateDirect(saving.writeBlock(i, hash.bytes(), EMPTY));
        // Less than it was where pages shrank in the meantime.
        blocks.add(new KvBlock(hash, bytes.limit(saving.writeBlock(i, hash.bytes(), bytes))));
      }
    }
    return blocks;
  }

  /** What follows the blocks of this sequence. To be closed. */
  NativeRestoring restoreBehind() {
    return call(() -> target.restoreBehind(id));
  }

  private NativeSaving snapshot(FileOptions options) {
    int ids = options.tokens().length;
    long longest = 0;
    for (int layer = 0; layer < cache.geometry().layers(); layer++) {
      longest = Math.max(longest, length(layer));
    }
    Checks.require(ids <= longest, ids + " token ids for a sequence of " + longest + " tokens");
    return call(() -> target.save(id));
  }

  private void write(NativeSaving saving, WritableByteChannel channel, FileOptions options) throws IOException {
    int[] tokens = options.tokens();
    List<byte[]> hashes =
        ChainHash.chain(saving.fingerprint(), options.salt(), cache.method().sinks(), KvCache.PAGE_TOKENS, tokens).stream()
            .map(ChainHash::bytes)
            .toList();
    SequenceOutput.write(saving, channel, FileWork.transfer(options), tokens, hashes);
  }

  /**
   * Releases the sequence; pages that it shares with forks live on in them. Calls under way in other threads finish
   * on what they saw. Closing again, or after the cache, does nothing.
   */
  @Override
  public void close() {
    lifetime.close();
  }

  @Override
  public String toString() {
    return "KvSequence[" + id + (lifetime.isClosed() ? ", closed]" : "]");
  }

  /** The id, for a call on this cache. */
  long idIn(KvCache expected) {
    if (cache != expected) {
      throw new IllegalArgumentException(this + " is part of another cache");
    }
    lifetime.requireOpen();
    return id;
  }

  private void run(Runnable work) {
    lifetime.requireOpen();
    work.run();
    Reference.reachabilityFence(this);
  }

  private <T> T call(Supplier<T> work) {
    lifetime.requireOpen();
    T result = work.get();
    Reference.reachabilityFence(this);
    return result;
  }

  private long appendElements(int layer, int tokens) {
    long elements = rowElements(layer, tokens);
    cache.requireShared(layer, false);
    cache.needs().append(this, layer, tokens);
    return elements;
  }

  private long rowElements(int layer, int tokens) {
    Checks.requirePositive("tokens", tokens);
    return Checks.product(tokens, cache.geometry().rowSize(layer));
  }
}
