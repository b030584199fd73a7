package dev.kvasir.prefix.policy;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;

class EvictionTest {

  /** Hits of a cache of 100 units that asks for what it lacks. */
  private static int hits(Eviction kind, Iterable<Integer> trace) {
    EvictionPolicy<Integer> policy = kind.create(100);
    Set<Integer> held = new HashSet<>();
    int hits = 0;
    for (int key : trace) {
      if (held.contains(key)) {
        hits++;
        policy.used(key);
        continue;
      }
      held.add(key);
      policy.added(key, 1);
      while (held.size() > 100) {
        assertTrue(held.remove(policy.evict()));
      }
    }
    return hits;
  }

  @Test
  void theOldestGoesFirst() {
    EvictionPolicy<String> policy = Eviction.LRU.create(10);
    policy.added("a", 1);
    policy.added("b", 1);
    policy.added("c", 1);
    policy.used("a");
    policy.removed("c");
    assertEquals("b", policy.evict());
    assertEquals("a", policy.evict());
    assertNull(policy.evict());
  }

  @Test
  void allGiveUpExactlyWhatTheyHold() {
    for (Eviction kind : Eviction.values()) {
      Random random = new Random(5);
      EvictionPolicy<Integer> policy = kind.create(1000);
      Map<Integer, Long> held = new HashMap<>();
      for (int step = 0; step < 20000; step++) {
        int key = random.nextInt(200);
        switch (random.nextInt(5)) {
          case 0, 1 -> {
            long bytes = held.getOrDefault(key, 1L + random.nextInt(50));
            policy.added(key, bytes);
            held.put(key, bytes);
          }
          case 2 -> policy.used(key);
          case 3 -> {
            if (random.nextInt(4) == 0) {
              policy.removed(key);
              held.remove(key);
            }
          }
          default -> {
            while (held.values().stream().mapToLong(n -> n).sum() > 1000) {
              assertNotNull(held.remove(policy.evict()), kind.name());
            }
          }
        }
      }
      while (!held.isEmpty()) {
        assertNotNull(held.remove(policy.evict()), kind.name());
      }
      assertNull(policy.evict());
    }
  }

  @Test
  void scansPushOutWhatIsUsedOnlyWithLru() {
    Random random = new Random(6);
    List<Integer> trace = new ArrayList<>();
    for (int round = 0; round < 200; round++) {
      for (int i = 0; i < 100; i++) {
        trace.add(random.nextInt(50)); // what is used
      }
      for (int i = 0; i < 150; i++) {
        trace.add(1000 + round * 150 + i); // once, and never again
      }
    }
    int lru = hits(Eviction.LRU, trace);
    assertTrue(hits(Eviction.S3_FIFO, trace) > lru * 1.3, "S3-FIFO " + hits(Eviction.S3_FIFO, trace) + ", LRU " + lru);
    assertTrue(hits(Eviction.ARC, trace) > lru * 1.3, "ARC " + hits(Eviction.ARC, trace) + ", LRU " + lru);
  }
}
