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
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import redis.clients.jedis.ClientSetInfoConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.util.JedisClusterCRC16;

/** Against servers that do as they are told; real ones are in ci/test-store. */
class RedisBlockStoreTest {

  /** On a machine that is busy, too. */
  private static final Duration SOON = Duration.ofSeconds(20);
  private static final String NOTHING = "";

  private final List<ChainHash> names = ChainHash.chain(new byte[32], new byte[0], 0, 128, new int[128 * 8]);
  private volatile int owner;
  /** That of the upper half of the slots, if it is another one. */
  private volatile int upper;
  private volatile boolean moved;

  @Test
  @Timeout(60)
  void slotsThatMovedAreFound() throws Exception {
    try (FakeNode second = member();
        FakeNode first = new FakeNode(command -> cluster(command, moved));
        RedisClusterClient client = cluster(first);
        RedisBlockStore store = new RedisBlockStore(client)) {
      assertEquals(8, store.getMany(names, SOON, (n, bytes) -> true).get());
      owner = second.port();
      moved = true;
      assertEquals(8, store.getMany(names, SOON, (n, bytes) -> true).get());
      assertEquals(8, store.containsLongest(names, SOON).get());
    }
  }

  @Test
  @Timeout(60)
  void blocksAreKeptWhereSlotsMovedTo() throws Exception {
    try (FakeNode second = member();
        FakeNode first = new FakeNode(command -> cluster(command, moved));
        RedisClusterClient client = cluster(first);
        RedisBlockStore store = new RedisBlockStore(client)) {
      owner = second.port();
      moved = true;
      List<KvBlock> blocks = names.stream().map(name -> new KvBlock(name, ByteBuffer.allocate(9))).toList();
      assertEquals(8, store.putMany(blocks, SOON).get());
    }
  }

  @Test
  @Timeout(60)
  void anotherNodeTakesOverFromOneThatDied() throws Exception {
    try (FakeNode second = member();
        FakeNode first = member();
        RedisClusterClient client = cluster(first, second);
        RedisBlockStore store = new RedisBlockStore(client)) {
      assertEquals(8, store.getMany(names, SOON, (n, bytes) -> true).get());
      owner = second.port();
      first.close();
      assertEquals(8, store.containsLongest(names, SOON).get());
      assertEquals(8, store.getMany(names, SOON, (n, bytes) -> true).get());
    }
  }

  /** Whoever else was asked in the same pipeline has answered. */
  @Test
  @Timeout(60)
  void oneNodeOfSeveralDies() throws Exception {
    try (FakeNode second = member();
        FakeNode first = member();
        RedisClusterClient client = clusterOfTwo(first, second, 2000);
        RedisBlockStore store = new RedisBlockStore(client, "kvasir:", Duration.ofDays(1), names.size())) {
      assertEquals(8, store.getMany(names, SOON, (n, bytes) -> true).get());
      owner = second.port();
      first.close();
      assertEquals(8, store.containsLongest(names, SOON).get());
      assertEquals(8, store.getMany(names, SOON, (n, bytes) -> true).get());
    }
  }

  /** As it is while another thread asks where slots have gone: a client does so once at a time. */
  @Test
  @Timeout(60)
  void whatMovedIsFoundBeforeThatIsKnown() throws Exception {
    try (FakeNode second = member();
        FakeNode first = sending("MOVED", second, "GET", "EXISTS");
        RedisClusterClient client = cluster(first);
        RedisBlockStore store = new RedisBlockStore(client)) {
      assertEquals(8, store.getMany(names, SOON, (n, bytes) -> true).get());
      assertEquals(8, store.containsLongest(names, SOON).get());
    }
  }

  /** Whoever asks where slots are closes the connections to nodes that have none, which others are about to use. */
  @Test
  @Timeout(60)
  void whatMovedIsFoundByManyAtOnce() throws Exception {
    try (FakeNode second = member();
        FakeNode first = sending("MOVED", second, "GET", "EXISTS");
        RedisClusterClient client = cluster(first);
        RedisBlockStore store = new RedisBlockStore(client, "kvasir:", Duration.ofDays(1), 2)) {
      for (int i = 0; i < 50; i++) {
        List<CompletableFuture<Integer>> asked = new ArrayList<>();
        for (int j = 0; j < 4; j++) {
          asked.add(store.getMany(names, SOON, (n, bytes) -> true));
        }
        for (CompletableFuture<Integer> each : asked) {
          assertEquals(8, each.get());
        }
      }
    }
  }

  /** A slot under way to another node: what is there already is known to that one alone. */
  @Test
  @Timeout(60)
  void keysThatAreMovingAreFoundWhereTheyWent() throws Exception {
    Set<String> asked = ConcurrentHashMap.newKeySet();
    try (FakeNode second =
            new FakeNode(
                command -> {
                  asked.add(command);
                  return cluster(command, false);
                });
        FakeNode first = sending("ASK", second, "GET", "EXISTS", "SET", "DEL");
        RedisClusterClient client = cluster(first);
        RedisBlockStore store = new RedisBlockStore(client)) {
      List<KvBlock> blocks = names.stream().map(name -> new KvBlock(name, ByteBuffer.allocate(9))).toList();
      assertEquals(8, store.putMany(blocks, SOON).get());
      assertEquals(8, store.containsLongest(names, SOON).get());
      assertEquals(8, store.getMany(names, SOON, (n, bytes) -> true).get());
      store.delete(names, SOON).get();
      assertTrue(asked.containsAll(List.of("ASKING", "GET", "EXISTS", "SET", "DEL")), asked.toString());
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
          assertThrows(ExecutionException.class, () -> store.putMany(blocks, SOON).get());
      assertTrue(failure.getCause() instanceof JedisDataException, failure.toString());
    }
  }

  /** Memory that is given back meanwhile would be filled with blocks that lack one before them. */
  @Test
  @Timeout(60)
  void whatStandsBehindARefusedBlockIsNotSent() throws Exception {
    AtomicInteger sets = new AtomicInteger();
    try (FakeNode full =
            new FakeNode(
                command -> command.equals("SET") && sets.incrementAndGet() == 3 ? "-OOM no memory\r\n" : cluster(command, false));
        RedisClusterClient client = cluster(full);
        RedisBlockStore store = new RedisBlockStore(client, "", Duration.ofDays(1), 2)) {
      List<KvBlock> blocks = names.stream().map(name -> new KvBlock(name, ByteBuffer.allocate(9))).toList();
      assertEquals(3, store.putMany(blocks, SOON).get());
      assertEquals(4, sets.get());
    }
  }

  @Test
  @Timeout(60)
  void whoAsksASilentServerIsAnsweredInTime() throws Exception {
    try (FakeNode silent = new FakeNode(command -> NOTHING);
        JedisPooled client = new JedisPooled(new HostAndPort("127.0.0.1", silent.port()), config(40_000));
        RedisBlockStore store = new RedisBlockStore(client)) {
      assertEquals(0, store.getMany(names, Duration.ofSeconds(1), (n, bytes) -> true).get(20, TimeUnit.SECONDS));
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

  /** The client stays the caller's, who gets no connection on which an answer is still to come. */
  @Test
  @Timeout(60)
  void closingLeavesTheClientAsItWas() throws Exception {
    CountDownLatch asked = new CountDownLatch(1);
    CountDownLatch answered = new CountDownLatch(1);
    AtomicInteger gets = new AtomicInteger();
    try (FakeNode second =
            new FakeNode(
                command -> {
                  if (command.equals("GET") && gets.getAndIncrement() == 0) {
                    asked.countDown();
                    await(answered);
                  }
                  return cluster(command, false);
                });
        FakeNode first = member();
        RedisClusterClient client = clusterOfTwo(first, second, 40_000)) {
      RedisBlockStore store = new RedisBlockStore(client, "kvasir:", Duration.ofDays(1), names.size());
      store.getMany(names, Duration.ofMinutes(10), (n, bytes) -> true);
      asked.await();
      Thread.currentThread().interrupt(); // who closes it does not wait
      store.close();
      assertTrue(Thread.interrupted());
      String other =
          IntStream.range(0, 1000)
              .mapToObj(Integer::toString)
              .filter(key -> JedisClusterCRC16.getSlot(key) > 8191)
              .findFirst()
              .orElseThrow();
      assertEquals("abc", CompletableFuture.supplyAsync(() -> client.get(other)).get(20, TimeUnit.SECONDS));
    } finally {
      answered.countDown();
    }
  }

  private static void await(CountDownLatch latch) {
    try {
      latch.await();
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
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

  /** A node that says what the cluster is, and has what it is asked for. */
  private FakeNode member() {
    return new FakeNode(command -> cluster(command, false));
  }

  /** One that sends whoever has these commands to another: for good where it says MOVED, this time where it says ASK. */
  private FakeNode sending(String word, FakeNode to, String... commands) {
    return new FakeNode(
        command ->
            List.of(commands).contains(command)
                ? "-" + word + " 5 127.0.0.1:" + to.port() + "\r\n"
                : cluster(command, false));
  }

  private RedisClusterClient cluster(FakeNode... all) {
    return cluster(2000, all);
  }

  private RedisClusterClient cluster(int timeoutMillis, FakeNode... all) {
    owner = all[0].port();
    Set<HostAndPort> nodes = new HashSet<>();
    for (FakeNode each : all) {
      nodes.add(new HostAndPort("127.0.0.1", each.port()));
    }
    return RedisClusterClient.builder().nodes(nodes).clientConfig(config(timeoutMillis)).build();
  }

  private RedisClusterClient clusterOfTwo(FakeNode lower, FakeNode other, int timeoutMillis) {
    upper = other.port();
    return cluster(timeoutMillis, lower, other);
  }

  private static DefaultJedisClientConfig config(int timeoutMillis) {
    return DefaultJedisClientConfig.builder()
        .socketTimeoutMillis(timeoutMillis)
        .clientSetInfoConfig(ClientSetInfoConfig.DISABLED)
        .build();
  }

  /** What a node of a cluster says. */
  private String cluster(String command, boolean gone) {
    if (command.equals("CLUSTER")) {
      return "*2\r\n" + slots(0, 8191, owner) + slots(8192, 16383, upper == 0 ? owner : upper);
    }
    if (gone) {
      return "-MOVED 5 127.0.0.1:" + owner + "\r\n";
    }
    return command.equals("GET") ? "$3\r\nabc\r\n" : List.of("EXISTS", "DEL").contains(command) ? ":1\r\n" : "+OK\r\n";
  }

  private static String slots(int first, int last, int port) {
    return "*3\r\n:" + first + "\r\n:" + last + "\r\n*3\r\n$9\r\n127.0.0.1\r\n:" + port + "\r\n$1\r\nx\r\n";
  }
}
