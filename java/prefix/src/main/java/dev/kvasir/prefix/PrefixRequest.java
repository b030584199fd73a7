package dev.kvasir.prefix;

import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * The tokens of a text, and whose they are. What comes first may be shared by all, such as a system prompt; what follows
 * belongs to a tenant. Only whole blocks are shared: one that holds a single token of the tenant's is the tenant's.
 *
 * @param tokens the ids from the beginning on, which nobody changes
 * @param tenant whose they are; null for everybody's
 * @param shared how many of the first tokens are everybody's nonetheless
 */
public record PrefixRequest(int[] tokens, @Nullable Tenant tenant, int shared) {

  /**
   * A request.
   *
   * @param tokens the ids from the beginning on, which nobody changes
   * @param tenant whose they are; null for everybody's
   * @param shared how many of the first tokens are everybody's nonetheless
   * @throws IllegalArgumentException if {@code shared} is negative or more than there are
   */
  public PrefixRequest {
    Objects.requireNonNull(tokens, "tokens");
    if (shared < 0 || shared > tokens.length) {
      throw new IllegalArgumentException(shared + " shared tokens of " + tokens.length);
    }
  }

  /**
   * Tokens that are everybody's.
   *
   * @param tokens the ids from the beginning on
   * @return a request
   */
  public static PrefixRequest of(int... tokens) {
    return new PrefixRequest(tokens, null, tokens.length);
  }

  /**
   * The same tokens, of a tenant: none of them are shared.
   *
   * @param owner whose they are
   * @return a copy
   */
  public PrefixRequest tenant(Tenant owner) {
    return new PrefixRequest(tokens, Objects.requireNonNull(owner, "owner"), 0);
  }

  /**
   * The same, of which the first ones are everybody's.
   *
   * @param count how many
   * @return a copy
   * @throws IllegalArgumentException if it is negative or more than there are
   */
  public PrefixRequest shared(int count) {
    return new PrefixRequest(tokens, tenant, count);
  }

  /** Whose a block is that ends before this token. */
  @Nullable Tenant ownerOf(long end) {
    return end <= shared ? null : tenant;
  }
}
