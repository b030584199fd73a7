package dev.kvasir.redis;

import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import dev.kvasir.prefix.store.BlockStore;
import dev.kvasir.prefix.store.StoreThreads;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.ConcurrentModificationException;
import java.util.Deque;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BiFunction;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.ClusterPipeline;
import redis.clients.jedis.Response;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisAskDataException;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.params.SetParams;

/**
 * Blocks in Redis or Valkey, for machines to share: values are blocks, keys are a prefix and their names. The client is the
 * caller's: a {@code RedisClient}, a {@code RedisClusterClient} or another {@link UnifiedJedis}, with its credentials, TLS and
 * timeouts; it needs connections for as many threads as this store has. How long blocks stay and which go first where memory
 * is full are the server's affair ({@code maxmemory-policy allkeys-lru}, say), beside the time to live that is set here.
 *
 * <p>Commands are pipelined, some at a time: a cluster's to all of its nodes at once. While some are fetched, others are on
 * their way to who asked.
 */
public final class RedisBlockStore implements BlockStore {

  private static final int THREADS = 4;
  private static final int AHEAD = 3;
  private static final int NAMES_AT_ONCE = 512;
  private static final int PATIENCE_SECONDS = 5;
  private static final int TRIES = 10;
  /** Servers add the time of the day, and refuse what no number holds. */
  private static final long MOST_MILLIS = Long.MAX_VALUE / 2;

  private final UnifiedJedis client;
  private final byte[] prefix;
  private final SetParams whenNew;
  private final int atOnce;
  private final ExecutorService threads = StoreThreads.create("kvasir-redis", THREADS);
  private final ExecutorService fetchers = StoreThreads.create("kvasir-redis-fetch", THREADS);
  private final Set<CompletableFuture<?>> open = ConcurrentHashMap.newKeySet();

  /**
   * A store whose keys begin with {@code kvasir:} and which keeps blocks for a day.
   *
   * @param client stays the caller's
   */
  public RedisBlockStore(UnifiedJedis client) {
    this(client, "kvasir:", Duration.ofDays(1), 4);
  }

  /**
   * A store.
   *
   * @param client stays the caller's
   * @param prefix what keys begin with
   * @param timeToLive how long the server keeps a block
   * @param blocksAtOnce how many blocks are asked for in one pipeline: fewer are attached sooner, more take fewer round
   *     trips
   * @throws IllegalArgumentException if the time is less than a millisecond, or the number less than 1
   */
  public RedisBlockStore(UnifiedJedis client, String prefix, Duration timeToLive, int blocksAtOnce) {
    long millis = Math.min(TimeUnit.MILLISECONDS.convert(timeToLive), MOST_MILLIS);
    if (millis < 1) {
      throw new IllegalArgumentException("a time to live of " + timeToLive);
    }
    if (blocksAtOnce < 1) {
      throw new IllegalArgumentException(blocksAtOnce + " blocks at once");
    }
    this.client = Objects.requireNonNull(client, "client");
    this.prefix = prefix.getBytes(StandardCharsets.UTF_8);
    this.whenNew = SetParams.setParams().nx().px(millis);
    this.atOnce = blocksAtOnce;
  }

  @Override
  public CompletableFuture<Integer> containsLongest(List<ChainHash> names, Duration deadline) {
    return work(
        () -> {
          int count = 0;
          for (int i = 0; i < names.size() && count == i; i += NAMES_AT_ONCE) {
            for (Boolean there : pipeline(part(names, i, NAMES_AT_ONCE), AbstractPipeline::exists, UnifiedJedis::exists)) {
              if (!Boolean.TRUE.equals(there)) {
                return count;
              }
              count++;
            }
          }
          return count;
        });
  }

  @Override
  public CompletableFuture<Integer> getMany(List<ChainHash> names, Duration deadline, Arrival arrival) {
    long end = System.nanoTime() + TimeUnit.NANOSECONDS.convert(deadline);
    return work(
        () -> {
          int count = 0;
          int asked = 0;
          // Some pipelines are on their way while the blocks of the one before them are handed over.
          Deque<CompletableFuture<List<byte[]>>> coming = new ArrayDeque<>();
          try {
            while (count < names.size()) {
              while (asked < names.size() && coming.size() < AHEAD && System.nanoTime() - end < 0) {
                coming.add(fetch(names, asked));
                asked += atOnce;
              }
              if (coming.isEmpty()) {
                break; // too late
              }
              for (byte[] value : coming.element().get(end - System.nanoTime(), TimeUnit.NANOSECONDS)) {
                if (value == null) {
                  return count;
                }
                count++;
                if (!arrival.block(count - 1, ByteBuffer.wrap(value))) {
                  return count;
                }
              }
              coming.remove();
            }
          } catch (TimeoutException e) {
            return count; // too late
          } catch (ExecutionException e) {
            throw new CompletionException(e.getCause());
          } finally {
            // What has not begun never does: the threads are for those who still wait.
            coming.forEach(left -> left.cancel(false));
          }
          return count;
        });
  }

  private CompletableFuture<List<byte[]>> fetch(List<ChainHash> names, int first) {
    return opened(
        StoreThreads.call(
            fetchers, () -> pipeline(part(names, first, atOnce), AbstractPipeline::get, UnifiedJedis::get)));
  }

  @Override
  public CompletableFuture<Integer> putMany(List<KvBlock> blocks, Duration deadline) {
    long end = System.nanoTime() + TimeUnit.NANOSECONDS.convert(deadline);
    return work(
        () -> {
          int count = 0;
          // None behind one that is refused: they are of no use without it.
          for (int i = 0; i == count && i < blocks.size() && System.nanoTime() - end < 0; i += atOnce) {
            count += put(blocks.subList(i, Math.min(blocks.size(), i + atOnce)));
          }
          return count;
        });
  }

  private int put(List<KvBlock> blocks) {
    List<ChainHash> names = blocks.stream().map(KvBlock::hash).toList();
    List<Supplier<@Nullable String>> answers =
        ask(
            names,
            (pipeline, i, key) -> pipeline.set(key, bytes(blocks.get(i)), whenNew),
            (i, key) -> client.set(key, bytes(blocks.get(i)), whenNew));
    int count = 0;
    JedisDataException refusal = null;
    for (Supplier<@Nullable String> answer : answers) {
      try {
        answer.get(); // null: it was there
        count++;
      } catch (JedisDataException e) {
        refusal = e; // no memory, say
      }
    }
    if (refusal != null && count == 0) {
      throw refusal;
    }
    return count;
  }

  @Override
  public CompletableFuture<Void> delete(List<ChainHash> names, Duration deadline) {
    return work(
        () -> {
          pipeline(names, AbstractPipeline::del, UnifiedJedis::del);
          return null;
        });
  }

  /** Ends the store's threads; what a server does not answer within seconds is cancelled. The client stays open. */
  @Override
  public void close() {
    // Nobody is interrupted: a cluster's pipeline would give connections back that others still read answers from.
    threads.shutdown();
    awaitEnd(threads);
    fetchers.shutdown();
    open.forEach(work -> work.cancel(false));
    awaitEnd(fetchers);
  }

  private static void awaitEnd(ExecutorService executor) {
    try {
      executor.awaitTermination(PATIENCE_SECONDS, TimeUnit.SECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  private interface Command<T> {
    Response<T> of(AbstractPipeline pipeline, byte[] key);
  }

  private interface NumberedCommand<T> {
    Response<T> of(AbstractPipeline pipeline, int index, byte[] key);
  }

  /** The same, of its own. */
  private interface Single<T> {
    @Nullable T of(int index, byte[] key);
  }

  /** What a server answered to each. */
  private <T> List<@Nullable T> pipeline(
      List<ChainHash> names, Command<T> command, BiFunction<UnifiedJedis, byte[], @Nullable T> single) {
    List<@Nullable T> values = new ArrayList<>();
    for (Supplier<@Nullable T> answer :
        ask(names, (pipeline, i, key) -> command.of(pipeline, key), (i, key) -> single.apply(client, key))) {
      values.add(answer.get());
    }
    return values;
  }

  /**
   * One answer to each, or a failure. A cluster's pipeline follows no redirection and never learns where slots have gone; a
   * command of its own does both. So where a node has moved a key or is not there, such a command goes first, and all are
   * asked again, once. What is still sent elsewhere is asked for one by one: its slot is on the way just now, or another
   * thread is about to learn where it has gone, or has just learnt it.
   */
  private <T> List<Supplier<@Nullable T>> ask(List<ChainHash> names, NumberedCommand<T> command, Single<T> single) {
    Sent<T> sent = send(names, command);
    if (sent.settled() < names.size()) {
      byte[] lost = keyOf(names.get(sent.settled()));
      again(() -> client.exists(lost));
      sent = send(names, command);
    }
    List<Supplier<@Nullable T>> all = new ArrayList<>();
    for (int i = 0; i < names.size(); i++) {
      int index = i;
      Response<T> answer = i < sent.answers.size() ? sent.answers.get(i) : null;
      Reply reply = answer == null ? Reply.NONE : replyOf(answer);
      if (reply == Reply.NONE && !sent.cut) {
        throw new JedisException("no node of the cluster answers to command " + i + " of " + names.size());
      }
      all.add(reply == Reply.GIVEN ? answer::get : () -> again(() -> single.of(index, keyOf(names.get(index)))));
    }
    return all;
  }

  /**
   * What came of a pipeline.
   *
   * @param answers of the first of its commands
   * @param cut whether another thread closed connections that it was about to use
   */
  private record Sent<T>(List<Response<T>> answers, boolean cut) {

    /** The first command that has no answer or whose key has moved, or their number. */
    int settled() {
      int count = 0;
      while (count < answers.size() && isSettled(replyOf(answers.get(count)))) {
        count++;
      }
      return count;
    }
  }

  private <T> Sent<T> send(List<ChainHash> names, NumberedCommand<T> command) {
    List<Response<T>> answers = new ArrayList<>();
    boolean cluster = false;
    boolean cut = false;
    try (AbstractPipeline pipeline = client.pipelined()) {
      cluster = pipeline instanceof ClusterPipeline;
      for (int i = 0; i < names.size(); i++) {
        answers.add(command.of(pipeline, i, keyOf(names.get(i))));
      }
      // Closing asks. If asked before, a cluster's pipeline would ask once more, and stumble over the node that is gone.
    } catch (JedisException | ConcurrentModificationException e) { // it forgets broken nodes on several threads
      cut = isClosedByOthers(e);
      if (!cluster || !cut && e instanceof JedisException && !(e instanceof JedisConnectionException)) {
        throw e;
      }
    }
    return new Sent<>(answers, cut);
  }

  /** Does it again where another thread closed the connections that it was about to use, until they are those that are there. */
  private static <T> T again(Supplier<T> command) {
    for (int tries = 1; ; tries++) {
      try {
        return command.get();
      } catch (JedisException e) {
        if (tries == TRIES || !isClosedByOthers(e)) {
          throw e;
        }
      }
    }
  }

  /** A cluster's client closes the connections to nodes that have no slots any more while others still take from them. */
  private static boolean isClosedByOthers(RuntimeException failure) {
    return failure instanceof JedisException && failure.getCause() instanceof IllegalStateException;
  }

  /** What came of a command in a pipeline. */
  private enum Reply {
    GIVEN,
    MOVED,
    /** The slot is on its way: what the old node does not have may be at the new one, which gets it in the end. */
    MOVING,
    NONE
  }

  /** Whether there is nothing to learn of the slots. */
  private static boolean isSettled(Reply reply) {
    return reply == Reply.GIVEN || reply == Reply.MOVING;
  }

  private static Reply replyOf(Response<?> answer) {
    try {
      answer.get();
      return Reply.GIVEN;
    } catch (JedisMovedDataException e) {
      return Reply.MOVED;
    } catch (JedisAskDataException e) {
      return Reply.MOVING;
    } catch (IllegalStateException | JedisConnectionException e) {
      return Reply.NONE;
    } catch (JedisDataException e) {
      return Reply.GIVEN; // no memory, say
    }
  }

  private static byte[] bytes(KvBlock block) {
    byte[] value = new byte[block.bytes().remaining()];
    block.bytes().get(block.bytes().position(), value);
    return value;
  }

  private byte[] keyOf(ChainHash name) {
    return ByteBuffer.allocate(prefix.length + ChainHash.BYTES).put(prefix).put(name.bytes()).array();
  }

  private static List<ChainHash> part(List<ChainHash> names, int first, int count) {
    return names.subList(first, Math.min(names.size(), first + count));
  }

  private <T> CompletableFuture<T> work(Callable<T> task) {
    return opened(StoreThreads.call(threads, task));
  }

  private <T> CompletableFuture<T> opened(CompletableFuture<T> work) {
    open.add(work);
    work.whenComplete((value, failure) -> open.remove(work));
    return work;
  }
}
