package dev.kvasir.codebook;

import dev.kvasir.error.NotFiniteException;
import dev.kvasir.internal.Checks;
import dev.kvasir.internal.codebook.NativeKeyCodebook;
import dev.kvasir.rope.RopePairs;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * The tables of one layer's keys.
 *
 * <p>The two channels of a RoPE pair are one complex number. A stage has a table of vectors z, and its code for a head
 * is a pair (a, b) that stands for z[a] + i z[b]; a key is the sum over the stages, times the norm of its token. Codes
 * do not depend on a token's position.
 *
 * <p>Tables are {@code [kvHeads][stages][entries][headDim]}: float16 values, the real parts of a vector (the first
 * channels of the pairs) and then its imaginary parts.
 */
public final class KeyCodebook {

  private final int kvHeads;
  private final int headDim;
  private final RopePairs pairs;
  private final int stages;
  private final int entries;
  private final NativeKeyCodebook codebook;

  /**
   * Makes a codebook from tables.
   *
   * @param kvHeads 1..1024
   * @param headDim a multiple of 16 in 32..256
   * @param pairs which channels RoPE rotates together
   * @param stages 1..64
   * @param entries vectors of a table: 16, 32 or 64
   * @param tables {@code [kvHeads][stages][entries][headDim]}; rounded to float16
   * @throws IllegalArgumentException if a number is out of range or the tables have another size
   * @throws NotFiniteException if an element fits no float16
   */
  public KeyCodebook(int kvHeads, int headDim, RopePairs pairs, int stages, int entries, float[] tables) {
    long size = tableElements(kvHeads, headDim, stages, entries);
    Checks.require(
        tables.length == size,
        "tables have " + tables.length + " elements, not the " + size + " of " + kvHeads + " kv heads, " + stages
            + " stages, " + entries + " entries and " + headDim + " channels");
    this.kvHeads = kvHeads;
    this.headDim = headDim;
    this.pairs = pairs;
    this.stages = stages;
    this.entries = entries;
    this.codebook = new NativeKeyCodebook(kvHeads, headDim, pairs.code(), stages, entries, tables);
  }

  NativeKeyCodebook nativeCodebook() {
    return codebook;
  }

  private static long tableElements(int kvHeads, int headDim, int stages, int entries) {
    return Checks.product(Checks.product(kvHeads, stages), Checks.product(entries, headDim));
  }

  /**
   * The kv heads.
   *
   * @return 1 or more
   */
  public int kvHeads() {
    return kvHeads;
  }

  /**
   * The channels of a head.
   *
   * @return a multiple of 16
   */
  public int headDim() {
    return headDim;
  }

  /**
   * Which channels RoPE rotates together.
   *
   * @return the pairs
   */
  public RopePairs pairs() {
    return pairs;
  }

  /**
   * The stages of a key.
   *
   * @return 1..64
   */
  public int stages() {
    return stages;
  }

  /**
   * The vectors of a table.
   *
   * @return 16, 32 or 64
   */
  public int entries() {
    return entries;
  }

  /**
   * Bits of a stored key per element: codes and norm, without the tables.
   *
   * @return for example 1.05 with 11 stages of 64 entries, 8 kv heads and 128 channels
   */
  public double bitsPerElement() {
    double codes = 2.0 * stages * Integer.numberOfTrailingZeros(entries) / headDim;
    return codes + 16.0 / (kvHeads * headDim);
  }

  /**
   * The tables.
   *
   * @return a new array, {@code [kvHeads][stages][entries][headDim]}
   */
  public float[] tables() {
    float[] tables = new float[(int) tableElements(kvHeads, headDim, stages, entries)];
    codebook.readTables(tables);
    return tables;
  }

  /**
   * A smaller codebook of the first stages. Stages are trained one after the other, so it is the one that a training of so
   * many stages gives.
   *
   * @param stages 1 .. {@link #stages}
   * @return a new codebook
   * @throws IllegalArgumentException if there are fewer stages
   */
  public KeyCodebook first(int stages) {
    Checks.require(stages >= 1 && stages <= this.stages, "the first " + stages + " of " + this.stages + " stages");
    int head = stages * entries * headDim;
    float[] all = tables();
    float[] some = new float[kvHeads * head];
    for (int i = 0; i < kvHeads; i++) {
      System.arraycopy(all, i * this.stages * entries * headDim, some, i * head, head);
    }
    return new KeyCodebook(kvHeads, headDim, pairs, stages, entries, some);
  }

  @Override
  public boolean equals(@Nullable Object other) {
    return other instanceof KeyCodebook that
        && kvHeads == that.kvHeads
        && headDim == that.headDim
        && pairs == that.pairs
        && stages == that.stages
        && entries == that.entries
        && Arrays.equals(tables(), that.tables());
  }

  @Override
  public int hashCode() {
    return Arrays.hashCode(new int[] {kvHeads, headDim, pairs.code(), stages, entries});
  }

  @Override
  public String toString() {
    return "KeyCodebook[" + kvHeads + " kv heads, head dim " + headDim + ", " + stages + " stages of " + entries
        + " entries, " + pairs + "]";
  }
}
