package dev.kvasir.prefix;

import dev.kvasir.file.ChainHash;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.Objects;
import javax.crypto.Cipher;
import javax.crypto.SecretKey;
import javax.crypto.spec.GCMParameterSpec;
import org.jspecify.annotations.Nullable;

/**
 * Blocks as they leave this process. With a key: 8 bytes that say so, a nonce of 12, and the block under AES-GCM, whose
 * associated data is the block's name, so that no block passes for another. Without one: the block itself.
 */
final class BlockSeal {

  private static final byte[] MAGIC = "kvsealed".getBytes(StandardCharsets.US_ASCII);
  private static final int NONCE = 12;
  private static final int TAG = 16;
  private static final SecureRandom RANDOM = new SecureRandom();

  private BlockSeal() {}

  static SecretKey checked(SecretKey key) {
    Objects.requireNonNull(key, "key");
    try {
      cipher(Cipher.ENCRYPT_MODE, key, new byte[NONCE]);
    } catch (GeneralSecurityException e) {
      throw new IllegalArgumentException("no key for AES: " + e.getMessage(), e);
    }
    return key;
  }

  static ByteBuffer seal(ChainHash name, ByteBuffer block, @Nullable SecretKey key) {
    if (key == null) {
      return block.duplicate();
    }
    byte[] nonce = new byte[NONCE];
    RANDOM.nextBytes(nonce);
    try {
      Cipher cipher = cipher(Cipher.ENCRYPT_MODE, key, nonce);
      cipher.updateAAD(name.bytes());
      ByteBuffer sealed = ByteBuffer.allocate(MAGIC.length + NONCE + block.remaining() + TAG);
      sealed.put(MAGIC).put(nonce);
      cipher.doFinal(block.duplicate(), sealed);
      return sealed.flip();
    } catch (GeneralSecurityException e) {
      throw new IllegalStateException("AES-GCM is not there", e);
    }
  }

  /** The block, or null where the bytes are not what {@link #seal} made of it with this key. */
  static @Nullable ByteBuffer open(ChainHash name, ByteBuffer bytes, @Nullable SecretKey key) {
    if (key == null) {
      return bytes;
    }
    int head = MAGIC.length + NONCE;
    if (bytes.remaining() < head + TAG) {
      return null;
    }
    byte[] magic = new byte[MAGIC.length];
    byte[] nonce = new byte[NONCE];
    ByteBuffer rest = bytes.duplicate();
    rest.get(magic).get(nonce);
    if (!Arrays.equals(magic, MAGIC)) {
      return null;
    }
    try {
      Cipher cipher = cipher(Cipher.DECRYPT_MODE, key, nonce);
      cipher.updateAAD(name.bytes());
      ByteBuffer block = ByteBuffer.allocate(rest.remaining() - TAG);
      cipher.doFinal(rest, block);
      return block.flip();
    } catch (GeneralSecurityException e) {
      return null;
    }
  }

  private static Cipher cipher(int mode, SecretKey key, byte[] nonce) throws GeneralSecurityException {
    Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
    cipher.init(mode, key, new GCMParameterSpec(8 * TAG, nonce));
    return cipher;
  }
}
