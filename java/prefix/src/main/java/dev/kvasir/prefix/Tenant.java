package dev.kvasir.prefix;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Objects;
import javax.crypto.SecretKey;
import org.jspecify.annotations.Nullable;

/**
 * Whose prefixes are not those of others. What a tenant publishes is found under the same tenant alone: its names are made
 * with its id and a secret, so that nobody who lacks the secret can even ask for them.
 */
public final class Tenant {

  private final String id;
  private final byte[] secret;
  private final @Nullable SecretKey key;

  private Tenant(String id, byte[] secret, @Nullable SecretKey key) {
    this.id = id;
    this.secret = secret;
    this.key = key;
  }

  /**
   * A tenant.
   *
   * @param id its name, which no other tenant has
   * @param secret bytes that only this tenant's requests come with; empty where stores are trusted
   * @return the tenant, whose blocks are stored as they are
   * @throws IllegalArgumentException if the id is empty
   */
  public static Tenant of(String id, byte[] secret) {
    if (id.isEmpty()) {
      throw new IllegalArgumentException("a tenant without an id");
    }
    return new Tenant(id, secret.clone(), null);
  }

  /**
   * The same tenant, whose blocks leave this process encrypted, by AES-GCM.
   *
   * @param secretKey of 16, 24 or 32 bytes, for AES
   * @return a copy
   * @throws IllegalArgumentException if the key is not one for AES
   */
  public Tenant key(SecretKey secretKey) {
    return new Tenant(id, secret, BlockSeal.checked(secretKey));
  }

  /**
   * Its name.
   *
   * @return the id
   */
  public String id() {
    return id;
  }

  @Nullable SecretKey key() {
    return key;
  }

  /** What its names are made with: whose they are follows from it, wherever the parts begin and end. */
  byte[] salt(byte[] common) {
    byte[] name = id.getBytes(StandardCharsets.UTF_8);
    return ByteBuffer.allocate(3 * Integer.BYTES + common.length + name.length + secret.length)
        .putInt(common.length)
        .put(common)
        .putInt(name.length)
        .put(name)
        .putInt(secret.length)
        .put(secret)
        .array();
  }

  @Override
  public boolean equals(Object other) {
    return this == other || other instanceof Tenant that && id.equals(that.id) && Arrays.equals(secret, that.secret);
  }

  @Override
  public int hashCode() {
    return Objects.hash(id, Arrays.hashCode(secret));
  }

  /** Without the secret. */
  @Override
  public String toString() {
    return "Tenant[" + id + "]";
  }
}
