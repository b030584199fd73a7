package dev.kvasir.commvq;

/**
 * Keys as a {@link KeyCodebook} stores them. The arrays are not copied.
 *
 * @param tokens the number of tokens
 * @param codes packed codes, by pages of 128 tokens: {@code [pages][kvHeads][stages]}, each 128 codes of 2 log2(entries)
 *     bits, lowest bit of the first byte first
 * @param norms the root mean square of each token, as bits of a float16
 */
public record EncodedKeys(int tokens, byte[] codes, short[] norms) {}
