package dev.kvasir.redis;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import redis.clients.jedis.ClientSetInfoConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.exceptions.JedisDataException;

/** Against servers that do as they are told; real ones are in ci/test-store. */
class RedisBlockStoreTest {

  private static final Duration SECOND = Duration.ofSeconds(1);
  private static final String NOTHING = "";

  private final List<ChainHash> names = ChainHash.chain(new byte[32], new byte[0], 0, 128, new int[128 * 8]);
  private volatile int owner;
  private volatile boolean moved;

  @Test
  @Timeout(60)
  void slotsThatMovedAreFound() throws Exception {
    try (FakeNode second = new FakeNode(command -> cluster(command, false));
        FakeNode first = new FakeNode(command -> cluster(command, moved));
        RedisClusterClient client = cluster(first);
        RedisBlockStore store = new RedisBlockStore(client)) {
      assertEquals(8, store.getMany(names, SECOND, (n, bytes) -> true).get());
      owner = second.port();
      moved = true;
      assertEquals(8, store.getMany(names, SECOND, (n, bytes) -> true).get());
      assertEquals(8, store.containsLongest(names, SECOND).get());
    }
  }

  @Test
  @Timeout(60)
  void blocksAreKeptWhereSlotsMovedTo() throws Exception {
    try (FakeNode second = new FakeNode(command -> cluster(command, false));
        FakeNode first = new FakeNode(command -> cluster(command, moved));
        RedisClusterClient client = cluster(first);
        RedisBlockStore store = new RedisBlockStore(client)) {
      owner = second.port();
      moved = true;
      List<KvBlock> blocks = names.stream().map(name -> new KvBlock(name, ByteBuffer.allocate(9))).toList();
      assertEquals(8, store.putMany(blocks, SECOND).get());
    }
  }

  @Test
  @Timeout(60)
  void anotherNodeTakesOverFromOneThatDied() throws Exception {
    try (FakeNode second = new FakeNode(command -> cluster(command, false));
        FakeNode first = new FakeNode(command -> cluster(command, false));
        RedisClusterClient client = cluster(first, second);
        RedisBlockStore store = new RedisBlockStore(client)) {
      assertEquals(8, store.getMany(names, SECOND, (n, bytes) -> true).get());
      owner = second.port();
      first.close();
      assertEquals(8, store.containsLongest(names, Duration.ofSeconds(20)).get());
      assertEquals(8, store.getMany(names, SECOND, (n, bytes) -> true).get());
    }
  }

  @Test
  @Timeout(60)
  void refusalsOfTheRightNodeAreTold() throws Exception {
    try (FakeNode full = new FakeNode(command -> command.equals("SET") ? "-OOM no memory\r\n" : cluster(command, false));
        RedisClusterClient client = cluster(full);
        RedisBlockStore store = new RedisBlockStore(client)) {
      List<KvBlock> blocks = List.of(new KvBlock(names.get(0), ByteBuffer.allocate(9)));
      ExecutionException failure =
          assertThrows(ExecutionException.class, () -> store.putMany(blocks, SECOND).get());
      assertTrue(failure.getCause() instanceof JedisDataException, failure.toString());
    }
  }

  @Test
  @Timeout(60)
  void whoAsksASilentServerIsAnsweredInTime() throws Exception {
    try (FakeNode silent = new FakeNode(command -> NOTHING);
        JedisPooled client = new JedisPooled(new HostAndPort("127.0.0.1", silent.port()), config(40_000));
        RedisBlockStore store = new RedisBlockStore(client)) {
      assertEquals(0, store.getMany(names, SECOND, (n, bytes) -> true).get(10, TimeUnit.SECONDS));
      silent.close();
    }
  }

  /** Of more calls than threads, each of which asks for more than threads fetch. */
  @Test
  @Timeout(60)
  void closingLeavesNobodyWaiting() throws Exception {
    try (FakeNode silent = new FakeNode(command -> NOTHING);
        JedisPooled client = new JedisPooled(new HostAndPort("127.0.0.1", silent.port()), config(40_000))) {
      RedisBlockStore store = new RedisBlockStore(client);
      List<CompletableFuture<Integer>> asked = new ArrayList<>();
      for (int i = 0; i < 8; i++) {
        asked.add(store.getMany(names, Duration.ofMinutes(10), (n, bytes) -> true));
      }
      store.close();
      for (CompletableFuture<Integer> call : asked) {
        // Told to end, or dropped before it began.
        Exception failure = assertThrows(Exception.class, () -> call.get(2, TimeUnit.SECONDS));
        assertTrue(failure instanceof CancellationException || failure instanceof ExecutionException, failure.toString());
      }
      assertEquals(Set.of(), callers());
    }
  }

  /** Threads that wait for what is fetched; those that fetch have to wait for the server. */
  private static Set<String> callers() throws InterruptedException {
    Set<String> found = Set.of();
    for (int i = 0; i < 20; i++) {
      found = new TreeSet<>();
      for (Thread thread : Thread.getAllStackTraces().keySet()) {
        if (thread.getName().matches("kvasir-redis-\\d+")) {
          found.add(thread.getName());
        }
      }
      if (found.isEmpty()) {
        break;
      }
      Thread.sleep(100);
    }
    return found;
  }

  private RedisClusterClient cluster(FakeNode first, FakeNode... others) {
    owner = first.port();
    Set<HostAndPort> nodes = new HashSet<>();
    nodes.add(new HostAndPort("127.0.0.1", first.port()));
    for (FakeNode other : others) {
      nodes.add(new HostAndPort("127.0.0.1", other.port()));
    }
    return RedisClusterClient.builder().nodes(nodes).clientConfig(config(2000)).build();
  }

  private static DefaultJedisClientConfig config(int timeoutMillis) {
    return DefaultJedisClientConfig.builder()
        .socketTimeoutMillis(timeoutMillis)
        .clientSetInfoConfig(ClientSetInfoConfig.DISABLED)
        .build();
  }

  /** What a node of a cluster says, all of whose slots are the owner's. */
  private String cluster(String command, boolean gone) {
    if (command.equals("CLUSTER")) {
      return "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:" + owner + "\r\n$1\r\nx\r\n";
    }
    if (gone) {
      return "-MOVED 5 127.0.0.1:" + owner + "\r\n";
    }
    return command.equals("GET") ? "$3\r\nabc\r\n" : command.equals("EXISTS") ? ":1\r\n" : "+OK\r\n";
  }
}
