package dev.kvasir.calibrate;

import dev.kvasir.internal.Checks;

/**
 * Keys, values and queries of one layer for one text that begins at position 0. The arrays are used as they are, not
 * copied, and never changed.
 *
 * @param tokens tokens of the text
 * @param keys {@code [tokens][kvHeads][headDim]}
 * @param keysRotated whether the keys are from after RoPE
 * @param values {@code [tokens][kvHeads][headDim]}
 * @param queryTokens how many queries there are; they belong to the text's last tokens
 * @param queries {@code [queryTokens][queryHeads][headDim]}, no rows more: only so are the last ones known
 * @param queriesRotated whether the queries are from after RoPE
 */
public record AttentionSample(
    int tokens,
    float[] keys,
    boolean keysRotated,
    float[] values,
    int queryTokens,
    float[] queries,
    boolean queriesRotated) {

  /**
   * Checks the numbers of tokens; the arrays are checked against a geometry where they are used.
   *
   * @param tokens tokens of the text
   * @param keys {@code [tokens][kvHeads][headDim]}
   * @param keysRotated whether the keys are from after RoPE
   * @param values {@code [tokens][kvHeads][headDim]}
   * @param queryTokens how many queries there are
   * @param queries {@code [queryTokens][queryHeads][headDim]}
   * @param queriesRotated whether the queries are from after RoPE
   * @throws IllegalArgumentException if there is no token, no query, or more queries than tokens
   */
  public AttentionSample {
    if (tokens < 1 || queryTokens < 1 || queryTokens > tokens) {
      throw new IllegalArgumentException(queryTokens + " query tokens of " + tokens + " tokens");
    }
  }

  /**
   * This sample with the queries of its last tokens only. Attention over all pairs of tokens takes time; a few hundred
   * queries tell scalings apart as well as all of them.
   *
   * @param count how many query tokens to keep, at most
   * @return a new sample, or this one if it has no more
   * @throws IllegalArgumentException if not positive, or the queries are not so many rows
   */
  public AttentionSample lastQueries(int count) {
    if (count >= queryTokens) {
      return this;
    }
    Checks.require(
        queries.length % queryTokens == 0,
        queries.length + " elements of queries are no rows of " + queryTokens + " tokens");
    int row = queries.length / queryTokens;
    float[] last = new float[Math.max(0, count) * row];
    System.arraycopy(queries, (queryTokens - Math.max(0, count)) * row, last, 0, last.length);
    return new AttentionSample(tokens, keys, keysRotated, values, count, last, queriesRotated);
  }
}
