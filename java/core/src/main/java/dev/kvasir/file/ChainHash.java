package dev.kvasir.file;

import dev.kvasir.internal.Checks;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;

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
   * @throws IllegalArgumentException if blocks have no tokens, or sinks are negative
   */
  public static List<ChainHash> chain(byte[] fingerprint, byte[] salt, int sinks, int blockTokens, int[] tokens) {
    Checks.requireNotNegative("sinks", sinks);
    Checks.requirePositive("blockTokens", blockTokens);
    return beginning(fingerprint, salt).names((long) sinks + blockTokens, blockTokens, tokens, 0);
  }

  /**
   * What stands before the first block of any text.
   *
   * @param fingerprint what the cache is, {@code KvCache.fingerprint()}
   * @param salt whose blocks they are; may be empty
   * @return what the name of a first block is made of, beside its tokens
   */
  public static ChainHash beginning(byte[] fingerprint, byte[] salt) {
    MessageDigest digest = sha256();
    digest.update("kvasir chain 1\n".getBytes(StandardCharsets.US_ASCII));
    digest.update(fingerprint);
    digest.update(ByteBuffer.allocate(Long.BYTES).order(ByteOrder.LITTLE_ENDIAN).putLong(0, salt.length));
    return new ChainHash(digest.digest(salt));
  }

  /**
   * The names of the whole blocks behind this one.
   *
   * @param firstTokens tokens of the first of them: more than of the others where it holds sinks
   * @param blockTokens tokens of each of the others
   * @param tokens the token ids from the text's beginning on
   * @param from where the first of them begins
   * @return one name a block, in order; tokens that fill no block have none
   * @throws IndexOutOfBoundsException if they begin outside of the text
   * @throws IllegalArgumentException if blocks have no tokens
   */
  public List<ChainHash> following(int firstTokens, int blockTokens, int[] tokens, int from) {
    Objects.checkFromToIndex(from, tokens.length, tokens.length);
    Checks.requirePositive("firstTokens", firstTokens);
    Checks.requirePositive("blockTokens", blockTokens);
    return names(firstTokens, blockTokens, tokens, from);
  }

  private List<ChainHash> names(long firstTokens, int blockTokens, int[] tokens, int from) {
    MessageDigest digest = sha256();
    List<ChainHash> chain = new ArrayList<>();
    // The name before, then the ids: moved as a whole, since to write them one by one takes as long as the hash.
    long most = Math.min(Math.max(firstTokens, blockTokens), tokens.length - from); // of what there is
    ByteBuffer link = ByteBuffer.allocate(Math.toIntExact(BYTES + most * Integer.BYTES));
    IntBuffer ids = link.slice(BYTES, link.capacity() - BYTES).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer();
    byte[] before = bytes();
    int first = from;
    for (long end = from + firstTokens; end <= tokens.length; end += blockTokens) {
      int count = (int) end - first;
      link.put(0, before);
      ids.put(0, tokens, first, count);
      digest.update(link.array(), 0, BYTES + count * Integer.BYTES);
      before = digest.digest();
      chain.add(new ChainHash(before));
      first = (int) end;
    }
    return List.copyOf(chain);
  }
}
