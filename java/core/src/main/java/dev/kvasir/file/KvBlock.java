package dev.kvasir.file;

import java.nio.ByteBuffer;
import java.util.Objects;

/**
 * A block of a sequence as bytes: 128 tokens of all layers. Blocks 0 to k-1 of a text make a sequence of that prefix. A
 * block checks itself where it is attached, so it may come from anywhere.
 *
 * @param hash its name
 * @param bytes the image, from the buffer's position to its limit, which nobody changes
 */
public record KvBlock(ChainHash hash, ByteBuffer bytes) {

  /**
   * A block and its name.
   *
   * @param hash its name
   * @param bytes the image
   */
  public KvBlock {
    Objects.requireNonNull(hash, "hash");
    Objects.requireNonNull(bytes, "bytes");
  }
}
