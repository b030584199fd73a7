package dev.kvasir.redis.trial;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.method.Uniform;
import dev.kvasir.prefix.FakeModel;
import dev.kvasir.prefix.PrefixCache;
import dev.kvasir.prefix.PrefixMatch;
import dev.kvasir.prefix.PrefixRequest;
import dev.kvasir.prefix.Tenant;
import dev.kvasir.prefix.Tier;
import dev.kvasir.prefix.TierStats;
import dev.kvasir.redis.RedisBlockStore;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Random;
import java.util.Set;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.UnifiedJedis;

/**
 * One machine: serves requests for some texts for a while, reuses what is known, and compares every answer with one that was
 * computed without. Arguments: {@code PORT pooled|cluster SECONDS SEED TEXTS publish|read [FOLDER]}. The last line says what it
 * saw.
 */
public final class Client {

  /** Of a text. */
  static final int MOST_BLOCKS = 7;

  private static final int SHARED_BLOCKS = 3;
  private static final int TENANTS = 3;

  private Client() {}

  static KvGeometry geometry() {
    return KvGeometry.builder().layers(3).queryHeads(4).kvHeads(4).headDim(64).build();
  }

  static UnifiedJedis connect(int port, boolean cluster) {
    JedisClientConfig config =
        DefaultJedisClientConfig.builder().connectionTimeoutMillis(500).socketTimeoutMillis(1500).build();
    HostAndPort address = new HostAndPort("127.0.0.1", port);
    if (cluster) {
      GenericObjectPoolConfig<Connection> pool = new GenericObjectPoolConfig<>();
      pool.setMaxTotal(16);
      return new JedisCluster(Set.of(address), config, 3, pool);
    }
    ConnectionPoolConfig pool = new ConnectionPoolConfig();
    pool.setMaxTotal(16);
    return new JedisPooled(pool, address, config);
  }

  /** A text of a tenant: three blocks that all have, then one to four of its own. */
  static PrefixRequest text(int number) {
    Random random = new Random(number);
    int shared = 4 + SHARED_BLOCKS * 128;
    int[] tokens = new int[shared + 128 * (1 + random.nextInt(MOST_BLOCKS - SHARED_BLOCKS)) + 1 + random.nextInt(100)];
    for (int i = 0; i < tokens.length; i++) {
      tokens[i] = i < shared ? i : random.nextInt(32000);
    }
    Tenant tenant = Tenant.of("tenant " + number % TENANTS, new byte[] {(byte) number});
    return PrefixRequest.of(tokens).tenant(tenant).shared(shared);
  }

  /** What a run came to. */
  private static final class Report {
    int lookups;
    int hits;
    int whole;
    int wrong;
    long worst;
  }

  public static void main(String[] arguments) throws Exception {
    int port = Integer.parseInt(arguments[0]);
    double seconds = Double.parseDouble(arguments[2]);
    Random random = new Random(Long.parseLong(arguments[3]));
    int texts = Integer.parseInt(arguments[4]);
    boolean publish = arguments[5].equals("publish");
    Report report = new Report();
    try (UnifiedJedis client = connect(port, arguments[1].equals("cluster"));
        KvCache cache = KvCache.builder(geometry()).method(Uniform.bits(2)).build();
        KvCache never = KvCache.builder(geometry()).method(Uniform.bits(2)).build()) {
      PrefixCache.Builder settings =
          PrefixCache.builder(cache)
              .poolBytes(0)
              .hostBytes(0)
              .deadline(Duration.ofMillis(500))
              .remote(new RedisBlockStore(client));
      if (arguments.length > 6) {
        settings.folder(Path.of(arguments[6]), 1L << 30);
      }
      try (PrefixCache prefixes = settings.build()) {
        System.out.println("ready");
        long end = System.nanoTime() + (long) (seconds * 1e9);
        for (int i = 0; System.nanoTime() - end < 0 || i < texts; i++) {
          serve(prefixes, never, text(i < texts ? i : random.nextInt(texts)), publish, report);
        }
        TierStats remote = prefixes.stats().tiers().get(Tier.REMOTE);
        System.out.printf(
            "lookups=%d hits=%d whole=%d wrong=%d worstMillis=%d remoteHits=%d failures=%d rejected=%d skipped=%d%n",
            report.lookups,
            report.hits,
            report.whole,
            report.wrong,
            report.worst / 1_000_000,
            remote.hits(),
            remote.failures(),
            remote.rejected(),
            remote.skipped());
      }
    }
  }

  private static void serve(
      PrefixCache prefixes, KvCache never, PrefixRequest request, boolean publish, Report report) {
    int[] tokens = request.tokens();
    long begun = System.nanoTime();
    try (PrefixMatch match = prefixes.lookup(request)) {
      report.worst = Math.max(report.worst, System.nanoTime() - begun);
      report.lookups++;
      int reused = match.reusedTokens();
      report.hits += reused > 0 ? 1 : 0;
      report.whole += reused == 4 + (tokens.length - 1 - 4) / 128 * 128 ? 1 : 0;
      try (KvSequence plain = FakeModel.cut(never, tokens, reused)) {
        FakeModel.read(plain, tokens, reused, tokens.length);
        FakeModel.read(match.sequence(), tokens, reused, tokens.length);
        boolean same = Arrays.equals(FakeModel.attend(plain), FakeModel.attend(match.sequence()));
        report.wrong += same && match.sequence().length() == tokens.length ? 0 : 1;
      }
      if (publish) {
        prefixes.publish(match.sequence(), request).join();
      }
    }
  }
}
