package dev.kvasir.prefix;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.kvasir.file.ChainHash;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

class BreakerTest {

  private static final long PAUSE = Duration.ofMillis(250).toNanos();

  private final AtomicLong now = new AtomicLong();

  @Test
  void onlyTrialsMakeThePauseLonger() {
    Breaker breaker = new Breaker(now::get);
    List<Breaker.Call> underWay = Stream.generate(breaker::begin).limit(10).toList();
    underWay.subList(0, 8).forEach(Breaker.Call::failed);
    assertNull(breaker.begin());
    now.addAndGet(PAUSE);
    Breaker.Call trial = breaker.begin();
    assertNotNull(trial);
    underWay.get(8).failed();
    assertNull(breaker.begin(), "one tries");
    trial.failed();
    underWay.get(9).failed();
    now.addAndGet(2 * PAUSE - 1);
    assertNull(breaker.begin());
    now.addAndGet(1);
    trial = breaker.begin();
    assertNotNull(trial);
    trial.succeeded();
    assertNotNull(breaker.begin());
    assertNotNull(breaker.begin());
  }

  private static void ask(StoreTier tier) {
    tier.containsLongest(List.of(ChainHash.of(new byte[32])), Duration.ofSeconds(9)).join();
  }

  @Test
  void anErrorIsAFailureToo() {
    FaultyStore store = new FaultyStore(1);
    StoreTier tier = new StoreTier(Tier.REMOTE, store, now::get);
    store.error = new NoClassDefFoundError("of a client");
    for (int i = 1; i <= 5; i++) { // from the fourth on they are trials
      assertThrows(NoClassDefFoundError.class, () -> ask(tier), "it is tried again");
      assertEquals(i, tier.stats().failures());
      if (i >= 3) {
        ask(tier);
        assertEquals(i - 2, tier.stats().skipped());
        now.addAndGet(Duration.ofSeconds(30).toNanos());
      }
    }
    store.error = null;
    ask(tier);
    ask(tier);
    assertEquals(5, tier.stats().failures());
    assertEquals(3, tier.stats().skipped(), "it is back");
  }
}
