package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.KvStats;
import dev.kvasir.Side;
import dev.kvasir.calibrate.BitAllocator;
import dev.kvasir.calibrate.BitPlan;
import dev.kvasir.calibrate.PageCost;
import dev.kvasir.calibrate.Sensitivities;
import dev.kvasir.method.PmKvq;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/**
 * Byte budgets for PM-KVQ that an average width just fits, once sequences have their full length: what a cache with pages
 * of that width from the start would take, and next to nothing more.
 *
 * @param method what the budget is for, made once what it learns of the model is known
 * @param bits codes alone; parameters come on top
 * @param scaled whether keys are scaled, as the paper has them
 */
record Budgets(Function<Calibrations, PmKvq> method, double bits, boolean scaled) implements MethodEntry.CacheFactory {

  private static final int PAGE = KvCache.PAGE_TOKENS;

  /** 16-bit rows come in blocks of so many tokens. */
  private static final int BLOCK = 16;

  /** Widths that a plan chooses from. */
  private static final int[] WIDTHS = {2, 4, 8};

  /** What pages and rows of a layer take. */
  private record Sizes(double page, long row) {}

  static Budgets of(PmKvq method, double bits) {
    return new Budgets(calibrations -> method, bits, false);
  }

  static Budgets scaled(PmKvq method, double bits) {
    return new Budgets(calibrations -> method, bits, true);
  }

  /** Floors by layer and side, where the model's loss feels them least. */
  static Budgets planned(double bits, Function<Calibrations, Sensitivities> sensitivities) {
    return new Budgets(calibrations -> plan(calibrations, sensitivities.apply(calibrations), bits), bits, false);
  }

  @Override
  public KvCache create(MethodEntry.Request request) {
    KvMethod used = method(request.calibrations(), method.apply(request.calibrations()));
    List<Sizes> sizes = sizes(request.geometry(), request.calibrations());
    long sequence = bytes(sizes, request.tokens(), used, false);
    long fork = bytes(sizes, PAGE + used.sinks() + used.window(), used, false);
    // Steps are timed on another fork, of some rows, which may fill a page.
    long timed = (long) Math.ceil(sizes.stream().mapToDouble(layer -> layer.page() + 2 * BLOCK * layer.row()).sum());
    long all = request.sequences() * sequence + request.forks() * fork + timed;
    return KvCache.builder(request.geometry()).method(used).budgetBytes(all).build();
  }

  /** Bits per element of a sequence of so many tokens, with a budget for that length. */
  double bitsAt(int tokens, KvGeometry geometry, Calibrations calibrations) {
    KvMethod used = method(calibrations, method.apply(calibrations));
    long elements = 0;
    for (int layer = 0; layer < geometry.layers(); layer++) {
      elements += 2L * geometry.rowSize(layer) * tokens;
    }
    return 8.0 * bytes(sizes(geometry, calibrations), tokens, used, true) / elements;
  }

  /** Pages of the width, and rows: as many as there are in the end, or as many as there ever are. */
  private static long bytes(List<Sizes> sizes, int tokens, KvMethod method, boolean end) {
    int kept = method.sinks() + method.window();
    int sealed = Math.max(0, (tokens - kept) / PAGE);
    int open = end ? Math.max(0, tokens - method.sinks() - sealed * PAGE) : Math.min(tokens, method.window() + PAGE);
    int rows = blocks(method.sinks()) + blocks(open);
    double bytes = 0;
    for (Sizes layer : sizes) {
      bytes += sealed * layer.page() + rows * layer.row();
    }
    return (long) Math.ceil(bytes);
  }

  private static int blocks(int rows) {
    return (rows + BLOCK - 1) / BLOCK * BLOCK;
  }

  private KvMethod method(Calibrations calibrations, PmKvq method) {
    return scaled ? calibrations.keyScaling().applyTo(method) : method;
  }

  private List<Sizes> sizes(KvGeometry geometry, Calibrations calibrations) {
    int below = Integer.highestOneBit((int) bits);
    double share = (bits - below) / below;
    double[] low = pages(geometry, calibrations, below);
    double[] high = share == 0 ? low : pages(geometry, calibrations, 2 * below);
    List<Sizes> sizes = new ArrayList<>();
    for (int layer = 0; layer < low.length; layer++) {
      long row = 2L * geometry.rowSize(layer) * Short.BYTES;
      sizes.add(new Sizes((1 - share) * low[layer] + share * high[layer], row));
    }
    return sizes;
  }

  /** Bytes of a page of each layer that is sealed at a width: asked of a cache, which knows. */
  private double[] pages(KvGeometry geometry, Calibrations calibrations, int width) {
    KvMethod sealing = method(calibrations, method.apply(calibrations).startBits(width));
    int tokens = sealing.sinks() + sealing.window() + PAGE;
    try (KvCache cache = KvCache.builder(geometry).method(sealing).build();
        KvSequence sequence = cache.newSequence()) {
      for (int layer = 0; layer < geometry.layers(); layer++) {
        float[] rows = new float[tokens * geometry.rowSize(layer)];
        sequence.append(layer, rows, rows, tokens);
      }
      return cache.stats().layers().stream().mapToDouble(KvStats.Layer::pageBytes).toArray();
    }
  }

  private static PmKvq plan(Calibrations calibrations, Sensitivities sensitivities, double bits) {
    KvGeometry geometry = calibrations.model().geometry();
    int headDim = geometry.headDim(0);
    double parameters = 8.0 * 2 * Short.BYTES * ((headDim + PAGE - 1) / PAGE) / headDim;
    BitPlan plan =
        BitAllocator.of(geometry, sensitivities, PageCost.perToken(geometry))
            .widths(WIDTHS)
            .separateSides(true)
            .averageBits(bits + parameters)
            .solve();
    List<Integer> keys = new ArrayList<>();
    List<Integer> values = new ArrayList<>();
    for (int layer = 0; layer < plan.layers(); layer++) {
      keys.add(plan.bits(layer, Side.KEYS));
      values.add(plan.bits(layer, Side.VALUES));
    }
    return PmKvq.floors(keys, values);
  }
}
