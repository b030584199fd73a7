package dev.kvasir.commvq;

/**
 * Values as a {@link ValueCodebook} stores them. The arrays are not copied.
 *
 * @param tokens the number of tokens
 * @param bits {@code [tokens][codes / 8]}, lowest bit of the first byte first
 * @param gains what the sum of a token's rows is multiplied by, as bits of a float16
 */
public record EncodedValues(int tokens, byte[] bits, short[] gains) {}
