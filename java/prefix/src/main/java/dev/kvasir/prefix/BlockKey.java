package dev.kvasir.prefix;

import java.util.Arrays;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/** The tokens of a block, of this array or of one of its own, and what they stand under: whose they are, or behind what. */
final class BlockKey {

  private final int[] tokens;
  private final int from;
  private final int to;
  private final @Nullable Object under;
  private final int hash;

  BlockKey(int[] tokens, int from, int to, @Nullable Object under) {
    this.tokens = tokens;
    this.from = from;
    this.to = to;
    this.under = under;
    this.hash = 31 * Objects.hashCode(under) + hash(tokens, from, to);
  }

  /** Four sums side by side: one alone waits for its products. */
  private static int hash(int[] tokens, int from, int to) {
    int a = 1;
    int b = 2;
    int c = 3;
    int d = 4;
    int i = from;
    for (; i + 4 <= to; i += 4) {
      a = 31 * a + tokens[i];
      b = 31 * b + tokens[i + 1];
      c = 31 * c + tokens[i + 2];
      d = 31 * d + tokens[i + 3];
    }
    for (; i < to; i++) {
      a = 31 * a + tokens[i];
    }
    return ((a * 31 + b) * 31 + c) * 31 + d;
  }

  /** The same, with tokens of its own. */
  BlockKey copy() {
    return new BlockKey(Arrays.copyOfRange(tokens, from, to), 0, to - from, under);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof BlockKey that
        && hash == that.hash
        && Arrays.equals(tokens, from, to, that.tokens, that.from, that.to)
        && Objects.equals(under, that.under);
  }

  @Override
  public int hashCode() {
    return hash;
  }
}
