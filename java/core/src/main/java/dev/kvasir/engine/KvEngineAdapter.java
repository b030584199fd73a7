package dev.kvasir.engine;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Checks;
import dev.kvasir.method.Uniform;
import java.nio.FloatBuffer;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A cache for an engine that knows {@code float[]} and {@code int} only: where it keeps keys and values in arrays of its own, it
 * leases a sequence here instead, appends rows in place of copying them to an array, and attends in place of its loops over
 * positions.
 *
 * <pre>{@code
 * KvEngineAdapter cache = KvEngineAdapter.open(layers, queryHeads, kvHeads, headDim, 4);
 * int lease = cache.lease();
 * cache.append(lease, layer, keys, 0, values, 0, 1);    // one row of kvHeads * headDim numbers each, keys after RoPE
 * cache.attend(lease, layer, query, 0, output, 0, 1);   // one row of queryHeads * headDim numbers each
 * cache.truncate(lease, length);                        // a step back
 * cache.close(lease);
 * }</pre>
 *
 * <p>Arrays may be larger than what a call uses: offsets say where it begins. What is wrong with a call is an {@link
 * IllegalArgumentException} with the numbers, a lease that has ended an {@link IllegalStateException}, a full budget a {@link
 * BudgetExceededException}; a call that throws has changed nothing. Methods may be called from any thread. Everything else that a
 * cache can do is behind {@link #cache} and {@link #sequence}.
 */
public final class KvEngineAdapter implements AutoCloseable {

  private final KvCache cache;
  private final Map<Integer, KvSequence> leases = new ConcurrentHashMap<>();
  private final AtomicInteger next = new AtomicInteger();

  private KvEngineAdapter(KvCache cache) {
    this.cache = Objects.requireNonNull(cache, "cache");
  }

  /**
   * For a model whose layers are alike.
   *
   * @param layers layers of the model
   * @param queryHeads query heads of a layer
   * @param kvHeads kv heads of a layer
   * @param headDim channels of a head
   * @param bits of an element: 1, 2, 3, 4, 8 or 16, as {@link Uniform#bits}
   * @return an adapter, to be closed by the caller
   * @throws IllegalArgumentException if a number is out of range
   */
  public static KvEngineAdapter open(int layers, int queryHeads, int kvHeads, int headDim, int bits) {
    KvGeometry geometry =
        KvGeometry.builder().layers(layers).queryHeads(queryHeads).kvHeads(kvHeads).headDim(headDim).build();
    return of(KvCache.builder(geometry).method(Uniform.bits(bits)).build());
  }

  /**
   * For any cache: other methods, budgets, geometries.
   *
   * @param cache the cache, which {@link #close()} closes
   * @return an adapter, to be closed by the caller
   */
  public static KvEngineAdapter of(KvCache cache) {
    return new KvEngineAdapter(cache);
  }

  /**
   * An empty sequence.
   *
   * @return its number, to be given back by {@link #close(int)}
   * @throws IllegalStateException if the adapter is closed
   */
  public int lease() {
    return add(cache.newSequence());
  }

  /**
   * Appends rows to a layer.
   *
   * @param lease the sequence
   * @param layer 0 .. layers-1
   * @param keys rows of kvHeads times headDim numbers, after RoPE
   * @param keysFrom where they begin
   * @param values the same shape
   * @param valuesFrom where they begin
   * @param tokens how many rows, 1 or more
   * @throws IllegalArgumentException if an argument is out of range, or an array too short
   * @throws NotFiniteException if a number is NaN, infinite or above 32752 in magnitude
   * @throws BudgetExceededException if the tokens do not fit the budget
   * @throws IllegalStateException if the lease has ended
   */
  public void append(int lease, int layer, float[] keys, int keysFrom, float[] values, int valuesFrom, int tokens) {
    KvSequence sequence = sequence(lease);
    int row = cache.geometry().rowSize(layer);
    sequence.append(
        layer, part("keys", keys, keysFrom, tokens, row), part("values", values, valuesFrom, tokens, row), tokens);
  }

  /**
   * Attention of the newest tokens' queries: the last sees all tokens, the one before it all but the newest, and so on.
   *
   * @param lease the sequence
   * @param layer 0 .. layers-1
   * @param queries rows of queryHeads times headDim numbers, after RoPE
   * @param queriesFrom where they begin
   * @param outputs where the same number of rows goes; may be the queries
   * @param outputsFrom where they begin
   * @param tokens how many rows, 1 or more and no more than the layer holds
   * @throws IllegalArgumentException if an argument is out of range, or an array too short
   * @throws IllegalStateException if the lease has ended
   */
  public void attend(
      int lease, int layer, float[] queries, int queriesFrom, float[] outputs, int outputsFrom, int tokens) {
    KvSequence sequence = sequence(lease);
    KvGeometry geometry = cache.geometry();
    sequence.attend(
        layer,
        part("queries", queries, queriesFrom, tokens, geometry.querySize(layer)),
        part("outputs", outputs, outputsFrom, tokens, geometry.outputSize(layer)),
        tokens);
  }

  /**
   * A second sequence with the same tokens, whose memory the two share.
   *
   * @param lease the sequence
   * @return the number of the new one, to be given back by {@link #close(int)}
   * @throws BudgetExceededException if what a method keeps beside the tokens does not fit the budget a second time
   * @throws IllegalStateException if the lease has ended
   */
  public int fork(int lease) {
    return add(sequence(lease).fork());
  }

  /**
   * Forgets all tokens from a position on, in all layers.
   *
   * @param lease the sequence
   * @param length tokens to keep, 0 or more
   * @throws IllegalArgumentException if negative, or more than there are
   * @throws IllegalStateException if the lease has ended
   */
  public void truncate(int lease, int length) {
    KvSequence sequence = sequence(lease);
    long now = sequence.length();
    Checks.require(length <= now, "length", length, "at most " + now);
    sequence.truncate(length);
  }

  /**
   * Tokens that all layers have.
   *
   * @param lease the sequence
   * @return the number
   * @throws IllegalStateException if the lease has ended
   */
  public int length(int lease) {
    return Math.toIntExact(sequence(lease).length());
  }

  /**
   * Ends a lease. Ending it again does nothing.
   *
   * @param lease the sequence
   * @throws IllegalArgumentException if there never was such a lease
   */
  public void close(int lease) {
    requireKnown(lease);
    KvSequence sequence = leases.remove(lease);
    if (sequence != null) {
      sequence.close();
    }
  }

  /**
   * The cache: statistics, budgets, batches.
   *
   * @return the cache
   */
  public KvCache cache() {
    return cache;
  }

  /**
   * The sequence of a lease: files, batches, guesses. Do not close it.
   *
   * @param lease the sequence
   * @return the sequence
   * @throws IllegalArgumentException if there never was such a lease
   * @throws IllegalStateException if the lease has ended
   */
  public KvSequence sequence(int lease) {
    requireKnown(lease);
    KvSequence sequence = leases.get(lease);
    if (sequence == null) {
      throw new IllegalStateException("lease " + lease + " has ended");
    }
    return sequence;
  }

  /** Ends all leases, and frees the cache. Closing again does nothing. */
  @Override
  public void close() {
    leases.clear();
    cache.close();
  }

  private int add(KvSequence sequence) {
    int lease = next.getAndUpdate(each -> each < Integer.MAX_VALUE ? each + 1 : each);
    if (lease == Integer.MAX_VALUE) {
      sequence.close();
      throw new IllegalStateException("all numbers of leases have been given: this needs another adapter");
    }
    leases.put(lease, sequence);
    return lease;
  }

  private void requireKnown(int lease) {
    if (lease < 0 || lease >= next.get()) {
      throw new IllegalArgumentException("there never was a lease " + lease);
    }
  }

  private static FloatBuffer part(String name, float[] array, int from, int tokens, int row) {
    Checks.requirePositive("tokens", tokens);
    long needed = Checks.product(tokens, row);
    if (from < 0 || needed > array.length - (long) from) {
      throw new IllegalArgumentException(
          name + ": " + needed + " numbers from " + from + " on, in an array of " + array.length);
    }
    return FloatBuffer.wrap(array, from, (int) needed);
  }
}
