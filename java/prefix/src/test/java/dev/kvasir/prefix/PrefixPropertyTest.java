package dev.kvasir.prefix;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.Testing;
import dev.kvasir.method.Uniform;
import dev.kvasir.prefix.policy.Eviction;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Random trees of prompts, tenants, evictions and failures, against a plain list of what was published by whom. */
class PrefixPropertyTest {

  private static final int SINKS = Uniform.bits(2).sinks();

  private static final List<Tenant> TENANTS =
      List.of(Tenant.of("a", new byte[0]), Tenant.of("b", new byte[] {1}), Tenant.of("c", new byte[] {1}));

  @TempDir Path folder;

  /** What is known: whose, and all tokens up to the end of the block. */
  private final Set<String> known = new HashSet<>();

  private static PrefixRequest draw(Random random) {
    int blocks = 1 + random.nextInt(5);
    int[] tokens = new int[SINKS + 128 * blocks + random.nextInt(100)];
    int branch = 0;
    for (int i = 0; i < tokens.length; i++) {
      if (i < SINKS || (i - SINKS) % 128 == 0) {
        branch = i < SINKS ? 0 : random.nextInt(2);
      }
      tokens[i] = 3 * branch + i % 2;
    }
    PrefixRequest request = PrefixRequest.of(tokens);
    if (random.nextInt(4) > 0) {
      request = request.tenant(TENANTS.get(random.nextInt(TENANTS.size())));
      request = random.nextBoolean() ? request.shared(random.nextInt(tokens.length)) : request;
    }
    return request;
  }

  private static String name(PrefixRequest request, int block) {
    int end = SINKS + 128 * (block + 1);
    String owner = request.tenant() == null || end <= request.shared() ? "" : request.tenant().id();
    return owner + Arrays.toString(Arrays.copyOf(request.tokens(), end));
  }

  private int longest(PrefixRequest request) {
    int most = Math.max(0, (request.tokens().length - 1 - SINKS) / 128);
    int count = 0;
    while (count < most && known.contains(name(request, count))) {
      count++;
    }
    return count == 0 ? 0 : SINKS + 128 * count;
  }

  private void run(PrefixCache prefixes, KvCache cache, Random random, int steps, FaultyStore store, boolean exact) {
    List<PrefixPin> pins = new ArrayList<>();
    long reused = 0;
    try (KvCache never = Testing.cache(Testing.small()).method(Uniform.bits(2)).build()) {
      for (int step = 0; step < steps; step++) {
        PrefixRequest request = draw(random);
        int[] tokens = request.tokens();
        try (PrefixMatch match = prefixes.lookup(request)) {
          int expected = longest(request);
          String where = "step " + step + ": " + match.tokensByTier() + " of " + request.tenant();
          assertTrue(match.reusedTokens() <= expected, where + " crosses, or is not known");
          if (exact) {
            assertEquals(expected, match.reusedTokens(), where);
          }
          assertEquals(match.reusedTokens(), match.sequence().length());
          assertEquals(match.reusedTokens(), match.tokensByTier().values().stream().mapToInt(n -> n).sum());
          reused += match.reusedTokens();
          try (KvSequence plain = FakeModel.cut(never, tokens, match.reusedTokens())) {
            if (match.reusedTokens() > 0) {
              assertArrayEquals(FakeModel.attend(plain), FakeModel.attend(match.sequence()), where);
            }
            FakeModel.read(plain, tokens, match.reusedTokens(), tokens.length);
            FakeModel.read(match.sequence(), tokens, match.reusedTokens(), tokens.length);
            assertArrayEquals(FakeModel.attend(plain), FakeModel.attend(match.sequence()), where);
          }
          if (random.nextInt(3) > 0) {
            prefixes.publish(match.sequence(), request).join();
            for (int block = 0; block < (tokens.length - SINKS) / 128; block++) {
              known.add(name(request, block));
            }
          }
        }
        switch (random.nextInt(12)) {
          case 0 -> prefixes.release(1L << 30);
          case 1 -> pins.add(prefixes.pin(draw(random)));
          case 2 -> prefixes.prefetch(draw(random)).join();
          case 3 -> store.faults = exact ? 0 : random.nextDouble() / 2;
          default -> {}
        }
        if (pins.size() > 2) {
          pins.remove(0).close();
        }
      }
    }
    assertTrue(reused > 0, "nothing was ever reused");
    prefixes.release(Long.MAX_VALUE);
    pins.forEach(PrefixPin::close);
    prefixes.release(Long.MAX_VALUE);
    assertEquals(0, prefixes.stats().tiers().get(Tier.POOL).holdings().bytes());
    assertEquals(0, cache.stats().sequences(), "sequences leak");
  }

  @Test
  void whatIsPublishedIsFoundByItsOwnersAlone() throws Exception {
    for (int round = 0; round < 3; round++) {
      Random random = Testing.random("published " + round);
      known.clear();
      FaultyStore store = new FaultyStore(random.nextLong());
      try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
          PrefixCache prefixes =
              PrefixCache.builder(cache).folder(folder.resolve("exact" + round), 1 << 30).remote(store).build()) {
        run(prefixes, cache, random, 120, store, true);
      }
    }
  }

  @Test
  void evictionsAndFaultsAreMisses() throws Exception {
    for (Eviction policy : Eviction.values()) {
      Random random = Testing.random("faults " + policy);
      known.clear();
      FaultyStore store = new FaultyStore(random.nextLong());
      try (KvCache cache = Testing.cache(Testing.small()).method(Uniform.bits(2)).build();
          PrefixCache prefixes =
              PrefixCache.builder(cache)
                  .policy(policy)
                  .poolBytes(random.nextInt(100_000))
                  .hostBytes(random.nextInt(100_000))
                  .folder(folder.resolve(policy.name()), random.nextInt(100_000))
                  .remote(store)
                  .deadline(Duration.ofMillis(30))
                  .build()) {
        run(prefixes, cache, random, 150, store, false);
      }
    }
  }
}
