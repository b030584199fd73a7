package dev.kvasir.file;

import java.util.List;

/**
 * What a sequence file says of itself.
 *
 * @param bytes of the file
 * @param blocks of 128 tokens each
 * @param lengths tokens of each layer; 0 for layers that share the rows of another one
 * @param tokenIds how many token ids it has; 0 where its writer gave none
 * @param fingerprint what its cache was, in hexadecimal
 * @param description the same as text, one fact a line
 */
public record FileInfo(
    long bytes, long blocks, List<Long> lengths, int tokenIds, String fingerprint, String description) {

  /**
   * Copies the list.
   *
   * @param bytes of the file
   * @param blocks of 128 tokens each
   * @param lengths tokens of each layer
   * @param tokenIds how many token ids it has
   * @param fingerprint what its cache was, in hexadecimal
   * @param description the same as text
   */
  public FileInfo {
    lengths = List.copyOf(lengths);
  }

  /**
   * Tokens of the longest layer.
   *
   * @return the number of tokens
   */
  public long tokens() {
    return lengths.stream().mapToLong(Long::longValue).max().orElse(0);
  }
}
