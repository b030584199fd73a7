package dev.kvasir.file;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;

/**
 * The name of a block in a store: 32 bytes made of what its cache is, a salt, and all token ids from the sequence's
 * beginning to the block's end. Equal names mean interchangeable blocks. {@code docs/format.md} has the rule.
 */
public final class ChainHash extends Digest {

  /** How many bytes a name has. */
  public static final int BYTES = LENGTH;

  private ChainHash(byte[] bytes) {
    super(bytes);
  }

  /**
   * A name that was kept as bytes.
   *
   * @param bytes 32 of them
   * @return the name
   * @throws IllegalArgumentException if there are more or fewer
   */
  public static ChainHash of(byte[] bytes) {
    if (bytes.length != BYTES) {
      throw new IllegalArgumentException("a chain hash has " + BYTES + " bytes, not " + bytes.length);
    }
    return new ChainHash(bytes.clone());
  }

  /**
   * The names of all whole blocks of a text.
   *
   * @param fingerprint what the cache is, {@code KvCache.fingerprint()}
   * @param salt whose blocks they are: lookups under another salt never meet; may be empty
   * @param sinks tokens before the first block, {@code KvMethod.sinks()}
   * @param blockTokens tokens of a block
   * @param tokens the token ids from the beginning on
   * @return one name a block, in order; tokens that fill no block have none
   */
  public static List<ChainHash> chain(byte[] fingerprint, byte[] salt, int sinks, int blockTokens, int[] tokens) {
    MessageDigest digest = sha256();
    digest.update("kvasir chain 1\n".getBytes(StandardCharsets.US_ASCII));
    digest.update(fingerprint);
    digest.update(ByteBuffer.allocate(Long.BYTES).order(ByteOrder.LITTLE_ENDIAN).putLong(0, salt.length));
    byte[] before = digest.digest(salt);
    List<ChainHash> chain = new ArrayList<>();
    ByteBuffer ids = ByteBuffer.allocate(Math.multiplyExact(sinks + blockTokens, Integer.BYTES));
    ids.order(ByteOrder.LITTLE_ENDIAN);
    int first = 0;
    for (long end = (long) sinks + blockTokens; end <= tokens.length; end += blockTokens) {
      ids.clear();
      for (int i = first; i < end; i++) {
        ids.putInt(tokens[i]);
      }
      digest.update(before);
      digest.update(ids.flip());
      before = digest.digest();
      chain.add(new ChainHash(before));
      first = (int) end;
    }
    return List.copyOf(chain);
  }
}
