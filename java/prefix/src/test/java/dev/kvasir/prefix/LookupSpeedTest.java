package dev.kvasir.prefix;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Testing;
import dev.kvasir.method.Uniform;
import dev.kvasir.prefix.policy.Eviction;
import java.time.Duration;
import java.util.Arrays;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Finding 256 blocks in the tree takes less than 100 microseconds, and so does finding out that there is nothing. */
class LookupSpeedTest {

  @Test
  void aTreeIsWalkedInMicroseconds() {
    int count = 256;
    int[] tokens = IntStream.range(0, 4 + count * 128).toArray();
    try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build()) {
      Blocks blocks = new Blocks(cache, new byte[0]);
      LivePrefixes live = new LivePrefixes(blocks, 1L << 40, Eviction.LRU, Duration.ZERO, System::nanoTime);
      KvSequence sequence = cache.newSequence();
      live.add(PrefixRequest.of(tokens), sequence, count, 1);
      PrefixRequest request = PrefixRequest.of(tokens.clone());
      long[] times = new long[2001];
      for (int i = 0; i < times.length; i++) {
        long begun = System.nanoTime();
        assertEquals(count, live.depth(request, count));
        times[i] = System.nanoTime() - begun;
      }
      Arrays.sort(times);
      long[] names = new long[501];
      for (int i = 0; i < names.length; i++) {
        long begun = System.nanoTime();
        assertEquals(count, blocks.names(request, count).size());
        names[i] = System.nanoTime() - begun;
      }
      Arrays.sort(names);
      System.out.printf(
          "256 blocks: found in %.1f us (median), named in %.1f us%n",
          times[times.length / 2] / 1e3, names[names.length / 2] / 1e3);
      assertTrue(times[times.length / 2] < 100_000, "a lookup takes " + times[times.length / 2] + " ns");
      live.close();
    }
  }
}
