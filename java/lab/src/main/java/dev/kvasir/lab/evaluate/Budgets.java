package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvEstimate;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvMethod;
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
    long sequence = bytes(sizes, request.tokens(), used);
    long fork = bytes(sizes, PAGE + used.sinks() + used.window(), used);
    // Steps are timed on another fork, of some rows, which may fill a page.
    long timed = (long) Math.ceil(sizes.stream().mapToDouble(layer -> layer.page() + 2 * BLOCK * layer.row()).sum());
    long all = request.sequences() * sequence + request.forks() * fork + timed;
    return KvCache.builder(request.geometry()).method(used).budgetBytes(all).build();
  }

  /** Bits per element of a sequence of so many tokens, with a budget for that length. */
  double bitsAt(int tokens, KvGeometry geometry, Calibrations calibrations) {
    return mixed(
        calibrations, sealing -> new double[] {KvEstimate.of(geometry, sealing, tokens, 1).total().bitsPerElement()})[0];
  }

  /** Pages of the width, and as many rows as there ever are. */
  private static long bytes(List<Sizes> sizes, int tokens, KvMethod method) {
    int kept = method.sinks() + method.window();
    int sealed = Math.max(0, (tokens - kept) / PAGE);
    int rows = blocks(method.sinks()) + blocks(Math.min(tokens, method.window() + PAGE));
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
    double[] pages =
        mixed(
            calibrations,
            sealing -> {
              int tokens = sealing.sinks() + sealing.window() + PAGE;
              List<KvEstimate.Layer> layers = KvEstimate.of(geometry, sealing, tokens, 1).layers();
              return layers.stream().mapToDouble(KvEstimate.Layer::pageBytes).toArray();
            });
    List<Sizes> sizes = new ArrayList<>();
    for (int layer = 0; layer < pages.length; layer++) {
      sizes.add(new Sizes(pages[layer], 2L * geometry.rowSize(layer) * Short.BYTES));
    }
    return sizes;
  }

  /** What is true of pages that are sealed at the width; of one between two widths, a share of both. */
  private double[] mixed(Calibrations calibrations, Function<KvMethod, double[]> measure) {
    int below = Integer.highestOneBit((int) bits);
    double share = (bits - below) / below;
    double[] low = measure.apply(sealing(calibrations, below));
    if (share > 0) {
      double[] high = measure.apply(sealing(calibrations, 2 * below));
      for (int i = 0; i < low.length; i++) {
        low[i] = (1 - share) * low[i] + share * high[i];
      }
    }
    return low;
  }

  private KvMethod sealing(Calibrations calibrations, int width) {
    return method(calibrations, method.apply(calibrations).startBits(width));
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
