package dev.kvasir.prefix;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;

import dev.kvasir.KvCache;
import dev.kvasir.Testing;
import dev.kvasir.method.Uniform;
import dev.kvasir.prefix.policy.Eviction;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class LivePrefixesTest {

  private static final int BYTES = 100;
  private static final Tenant ANN = Tenant.of("ann", new byte[0]);
  private static final Tenant BOB = Tenant.of("bob", new byte[0]);

  private static PrefixRequest text(int seed, int blocks) {
    return PrefixRequest.of(IntStream.range(0, 4 + 128 * blocks).map(i -> seed + i).toArray());
  }

  private static LivePrefixes live(KvCache cache, int budgetBlocks, Eviction policy) {
    LivePrefixes live =
        new LivePrefixes(
            new Blocks(cache, new byte[0]), budgetBlocks * BYTES, policy, Duration.ZERO, System::nanoTime);
    live.measured(BYTES, 1);
    return live;
  }

  private static void add(LivePrefixes live, KvCache cache, PrefixRequest request) {
    live.add(request, FakeModel.cut(cache, request.tokens(), request.tokens().length), request.tokens().length / 128);
  }

  private static boolean find(LivePrefixes live, PrefixRequest request) {
    LivePrefixes.Found found = live.find(request, request.tokens().length / 128);
    if (found != null) {
      found.sequence().close();
    }
    return found != null;
  }

  @Test
  void whatComesAgainEntersAPoolOfWhatIsUsed() {
    for (Eviction policy : List.of(Eviction.ARC, Eviction.S3_FIFO)) {
      try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build()) {
        LivePrefixes live = live(cache, 4, policy);
        for (int i = 0; i < 4; i++) {
          add(live, cache, text(1000 * i, 1));
          assertEquals(true, find(live, text(1000 * i, 1)));
        }
        PrefixRequest late = text(9000, 1);
        add(live, cache, late);
        assertEquals(false, find(live, late), policy + ": once is not enough");
        add(live, cache, late);
        assertEquals(true, find(live, late), policy + ": twice is");
        assertEquals(4 * BYTES, live.holdings().bytes());
        live.close();
      }
    }
  }

  @Test
  void aTextOfMillionsOfTokensIsClosedLikeAnyOther() {
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build()) {
      LivePrefixes live = live(cache, 20000, Eviction.LRU);
      live.add(text(0, 20000), cache.newSequence(), 20000);
      assertEquals(20000, live.holdings().blocks());
      live.close();
      assertEquals(0, cache.stats().sequences());
    }
  }

  /** Their last blocks have one name. */
  @Test
  void prefixesThatDifferInWhatIsEverybodysAreTwo() {
    for (Eviction policy : Eviction.values()) {
      try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build()) {
        LivePrefixes live = live(cache, 4, policy);
        PrefixRequest own = text(0, 2).tenant(ANN);
        add(live, cache, own);
        add(live, cache, own.shared(4 + 128));
        assertEquals(2, cache.stats().sequences());
        live.release(Long.MAX_VALUE);
        assertEquals(0, live.holdings().bytes(), policy.name());
        assertEquals(0, cache.stats().sequences(), policy.name());
      }
    }
  }

  /** Publications and loads that were under way when the prefix cache was closed. */
  @Test
  void whatComesAfterTheEndIsGivenBack() {
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build()) {
      LivePrefixes live = live(cache, 4, Eviction.LRU);
      add(live, cache, text(0, 1));
      live.close();
      add(live, cache, text(1000, 1));
      assertEquals(0, cache.stats().sequences());
      assertEquals(false, find(live, text(1000, 1)));
      assertEquals(0, live.holdings().blocks());
    }
  }

  @Test
  void aPinOfWhatIsUnknownKeepsNothing() {
    AtomicLong now = new AtomicLong();
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build()) {
      LivePrefixes live =
          new LivePrefixes(new Blocks(cache, new byte[0]), 1 << 30, Eviction.ARC, Duration.ofNanos(10), now::get);
      PrefixRequest anns = text(0, 1).tenant(ANN);
      add(live, cache, anns);
      assertNull(live.pin(text(0, 1).tenant(BOB), 1));
      assertNull(live.pin(text(5000, 1), 1));
      assertNull(live.pin(anns, 0));
      LivePrefixes.Held held = live.pin(anns, 1);
      assertNotNull(held);
      live.unpin(held);
      now.set(11);
      assertEquals(false, find(live, anns));
      live.close();
    }
  }
}
