package dev.kvasir.prefix.simulate;

import dev.kvasir.prefix.policy.Eviction;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * Replays a trace over machines, each with a pool and memory of its own, and a store that all share, with the policies of the
 * library, and prints where tokens came from and what was moved. Arguments: {@code NODES REQUESTS SEED ARRIVALS}, the last one
 * new conversations a second on each node. From so many nodes on that every block by itself would take minutes, blocks of a
 * prompt, a document, a question or an answer come and go together.
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

  /** Up to so many nodes blocks are looked at one by one. */
  private static final int FEW_NODES = 64;

  private Simulate() {}

  /** Bytes of each tier, in GiB: of a machine, of a machine, of all together by the machine. */
  private record Budget(double pool, double host, double store) {
    @Override
    public String toString() {
      return String.format(Locale.ROOT, "%.0f + %.0f + %.0f GiB", pool, host, store);
    }
  }

  private static final List<Budget> OF_FEW = List.of(new Budget(1, 4, 8), new Budget(4, 16, 32), new Budget(8, 64, 128));
  /** Where many share a store, a little of each node's makes a large one. */
  private static final List<Budget> OF_MANY = List.of(new Budget(1, 4, 1), new Budget(1, 4, 4), new Budget(4, 16, 8));

  /** One line of what is printed. */
  private record Row(Eviction policy, boolean compressed, Budget budget) {
    double blockGib() {
      return compressed ? BLOCK_GIB_2 : BLOCK_GIB_16;
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
    double arrivals = arguments.length > 3 ? Double.parseDouble(arguments[3]) : 5;
    System.out.printf("%d nodes, %d requests, seed %d; budgets: pool + memory + store, by the node%n", nodes, requests, seed);
    System.out.println("policy    bits   budgets               pool    memory  store   computed  GiB read  GiB written  mean TTFT");
    List<Row> rows = new ArrayList<>();
    for (Budget budget : nodes <= FEW_NODES ? OF_FEW : OF_MANY) {
      for (Eviction policy : Eviction.values()) {
        rows.add(new Row(policy, true, budget));
      }
      rows.add(new Row(Eviction.LRU, false, budget));
    }
    // Side by side: each has a trace and tiers of its own.
    rows.parallelStream()
        .map(row -> line(row, replay(row, nodes, requests, new Trace(nodes, arrivals, nodes > FEW_NODES, seed))))
        .forEachOrdered(System.out::println);
  }

  private static String line(Row row, Totals totals) {
    long known = totals.pool + totals.host + totals.store;
    return String.format(
        Locale.ROOT,
        "%-8s  %-5s  %-20s  %5.1f%%  %5.1f%%  %5.1f%%  %7.1f%%  %8.0f  %11.0f  %7.0f ms",
        row.policy,
        row.compressed ? "2.28" : "16",
        row.budget,
        100.0 * totals.pool / totals.asked,
        100.0 * totals.host / totals.asked,
        100.0 * totals.store / totals.asked,
        100.0 * (totals.asked - known) / totals.asked,
        (totals.host + totals.store) * row.blockGib(),
        totals.written * row.blockGib(),
        1000 * totals.seconds / totals.requests);
  }

  private static Totals replay(Row row, int nodes, int requests, Trace trace) {
    double gib = row.blockGib();
    List<ModelTier> pools = new ArrayList<>();
    List<ModelTier> hosts = new ArrayList<>();
    for (int i = 0; i < nodes; i++) {
      pools.add(new ModelTier(row.policy, (long) (row.budget.pool / gib)));
      hosts.add(new ModelTier(row.policy, (long) (row.budget.host / gib)));
    }
    ModelTier store = new ModelTier(row.policy, (long) (nodes * row.budget.store / gib));
    Totals totals = new Totals();
    for (int i = 0; i < requests; i++) {
      Trace.Request request = trace.next();
      serve(request, pools.get(request.node()), hosts.get(request.node()), store, gib, i >= requests / 4 ? totals : new Totals());
    }
    return totals;
  }

  /** As a lookup and a publication would: the first quarter of a trace warms up and does not count. */
  private static void serve(
      Trace.Request request, ModelTier pool, ModelTier host, ModelTier store, double blockGib, Totals totals) {
    Run[] text = request.text();
    int prompt = request.answerFrom();
    int reached = pool.longest(text, 0, prompt);
    int inPool = Run.blocks(text, 0, reached);
    pool.use(text, 0, reached);
    int inHost = 0;
    int inStore = 0;
    for (int before = -1; before < reached; ) { // whichever has the next one
      before = reached;
      int far = reached + host.longest(text, reached, prompt);
      inHost += Run.blocks(text, reached, far);
      reached = far + store.longest(text, far, prompt);
      inStore += Run.blocks(text, far, reached);
    }
    host.use(text, 0, reached);
    store.use(text, 0, reached);
    pool.add(text, 0, text.length);
    host.add(text, 0, text.length);
    totals.written += store.add(text, 0, text.length);
    totals.asked += Run.blocks(text, 0, prompt);
    totals.pool += inPool;
    totals.host += inHost;
    totals.store += inStore;
    totals.requests++;
    totals.seconds +=
        inHost * blockGib / HOST_RATE
            + inStore * blockGib / STORE_RATE
            + Run.blocks(text, reached, prompt) * BLOCK_TOKENS / PREFILL_RATE;
  }
}
