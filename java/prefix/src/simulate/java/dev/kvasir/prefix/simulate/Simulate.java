package dev.kvasir.prefix.simulate;

import dev.kvasir.prefix.policy.Eviction;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * Replays a trace over machines, each with a pool and memory of its own, and a store that all share, with the policies of the
 * library, and prints where tokens came from and what was moved. Arguments: {@code NODES REQUESTS SEED}.
 */
public final class Simulate {

  private static final int BLOCK_TOKENS = 128;
  /** Of a model of 32 layers with 8 kv heads of 128: 65536 elements a token. */
  private static final double BLOCK_GIB_16 = BLOCK_TOKENS * 65536 * 16 / 8 / (double) (1 << 30);

  private static final double BLOCK_GIB_2 = BLOCK_GIB_16 * 2.28 / 16;
  /** Times of the model: GiB a second from memory and from the store, tokens a second computed. */
  private static final double HOST_RATE = 20;

  private static final double STORE_RATE = 1;
  private static final double PREFILL_RATE = 10_000;

  private Simulate() {}

  /** Bytes of each tier, in GiB: of a machine, of a machine, of all together by the machine. */
  private record Budget(double pool, double host, double store) {
    @Override
    public String toString() {
      return String.format(Locale.ROOT, "%.0f + %.0f + %.0f GiB", pool, host, store);
    }
  }

  private static final class Totals {
    long asked;
    long pool;
    long host;
    long store;
    long written;
    double seconds;
    int requests;
  }

  public static void main(String[] arguments) {
    int nodes = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 8;
    int requests = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 10_000;
    long seed = arguments.length > 2 ? Long.parseLong(arguments[2]) : 1;
    System.out.printf("%d nodes, %d requests, seed %d; budgets: pool + memory + store, by the node%n", nodes, requests, seed);
    System.out.println("policy    bits   budgets               pool    memory  store   computed  GiB read  GiB written  mean TTFT");
    List<Budget> budgets = List.of(new Budget(1, 4, 8), new Budget(4, 16, 32), new Budget(8, 64, 128));
    for (Budget budget : budgets) {
      for (Eviction policy : Eviction.values()) {
        print(policy, "2.28", budget, replay(policy, budget, BLOCK_GIB_2, nodes, requests, seed), BLOCK_GIB_2);
      }
      print(Eviction.LRU, "16", budget, replay(Eviction.LRU, budget, BLOCK_GIB_16, nodes, requests, seed), BLOCK_GIB_16);
    }
  }

  private static void print(Eviction policy, String bits, Budget budget, Totals totals, double blockGib) {
    long known = totals.pool + totals.host + totals.store;
    System.out.printf(
        Locale.ROOT,
        "%-8s  %-5s  %-20s  %5.1f%%  %5.1f%%  %5.1f%%  %7.1f%%  %8.0f  %11.0f  %7.0f ms%n",
        policy,
        bits,
        budget,
        100.0 * totals.pool / totals.asked,
        100.0 * totals.host / totals.asked,
        100.0 * totals.store / totals.asked,
        100.0 * (totals.asked - known) / totals.asked,
        (totals.host + totals.store) * blockGib,
        totals.written * blockGib,
        1000 * totals.seconds / totals.requests);
  }

  private static Totals replay(Eviction policy, Budget budget, double blockGib, int nodes, int requests, long seed) {
    List<ModelTier> pools = new ArrayList<>();
    List<ModelTier> hosts = new ArrayList<>();
    for (int i = 0; i < nodes; i++) {
      pools.add(new ModelTier(policy, (long) (budget.pool / blockGib)));
      hosts.add(new ModelTier(policy, (long) (budget.host / blockGib)));
    }
    ModelTier store = new ModelTier(policy, (long) (nodes * budget.store / blockGib));
    Trace trace = new Trace(nodes, seed);
    Totals totals = new Totals();
    for (int i = 0; i < requests; i++) {
      Trace.Request request = trace.next();
      serve(request, pools.get(request.node()), hosts.get(request.node()), store, blockGib, i >= requests / 4 ? totals : new Totals());
    }
    return totals;
  }

  /** As a lookup and a publication would: the first quarter of a trace warms up and does not count. */
  private static void serve(
      Trace.Request request, ModelTier pool, ModelTier host, ModelTier store, double blockGib, Totals totals) {
    long[] blocks = request.blocks();
    int prompt = request.answerFrom();
    int inPool = pool.longest(blocks, 0, prompt);
    int reached = inPool;
    int inHost = 0;
    int inStore = 0;
    while (reached < prompt) { // whichever has the next one
      int more = host.longest(blocks, reached, prompt);
      int far = store.longest(blocks, reached + more, prompt);
      inHost += more;
      inStore += far;
      reached += more + far;
      if (more + far == 0) {
        break;
      }
    }
    pool.use(blocks, 0, inPool);
    host.use(blocks, 0, reached);
    store.use(blocks, 0, reached);
    pool.add(blocks, 0, blocks.length);
    host.add(blocks, 0, blocks.length);
    totals.written += store.add(blocks, 0, blocks.length);
    totals.asked += prompt;
    totals.pool += inPool;
    totals.host += inHost;
    totals.store += inStore;
    totals.requests++;
    totals.seconds +=
        inHost * blockGib / HOST_RATE
            + inStore * blockGib / STORE_RATE
            + (prompt - reached) * BLOCK_TOKENS / PREFILL_RATE;
  }
}
