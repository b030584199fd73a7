package dev.kvasir.file;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** Names of blocks: one for each whole block, and an end for all numbers. */
@Timeout(20)
class ChainHashTest {

  private static final byte[] FINGERPRINT = new byte[32];
  private static final byte[] SALT = new byte[0];
  private static final int[] TOKENS = {1, 2, 3, 4, 5, 6, 7};

  private static void assertRefused(Executable call) {
    assertThrows(IllegalArgumentException.class, call);
  }

  @Test
  void blocksWithoutTokensAreRefused() {
    ChainHash beginning = ChainHash.beginning(FINGERPRINT, SALT);
    for (int none : new int[] {0, -1, Integer.MIN_VALUE}) {
      assertRefused(() -> ChainHash.chain(FINGERPRINT, SALT, 3, none, TOKENS));
      assertRefused(() -> beginning.following(3, none, TOKENS, 0));
      assertRefused(() -> beginning.following(none, 3, TOKENS, 0));
    }
    assertRefused(() -> ChainHash.chain(FINGERPRINT, SALT, -1, 3, TOKENS));
  }

  @Test
  void blocksThatAreLongerThanTheTextHaveNoNames() {
    int most = Integer.MAX_VALUE;
    ChainHash beginning = ChainHash.beginning(FINGERPRINT, SALT);
    assertEquals(List.of(), ChainHash.chain(FINGERPRINT, SALT, most, most, TOKENS));
    assertEquals(List.of(), beginning.following(most, 1, TOKENS, 0));
    assertEquals(List.of(), beginning.following(1, 1, TOKENS, TOKENS.length));
    assertEquals(1, beginning.following(2, most, TOKENS, 0).size());
    assertThrows(IndexOutOfBoundsException.class, () -> beginning.following(1, 1, TOKENS, TOKENS.length + 1));
  }

  @Test
  void aChainGoesOnWhereItEnded() {
    List<ChainHash> all = ChainHash.chain(FINGERPRINT, SALT, 1, 2, TOKENS);
    assertEquals(3, all.size());
    assertEquals(all.subList(1, 3), all.get(0).following(2, 2, TOKENS, 3));
  }
}
