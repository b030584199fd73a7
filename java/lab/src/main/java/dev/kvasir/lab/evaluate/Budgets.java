package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.Side;
import dev.kvasir.calibrate.BitAllocator;
import dev.kvasir.calibrate.BitPlan;
import dev.kvasir.calibrate.PageCost;
import dev.kvasir.calibrate.Sensitivities;
import dev.kvasir.method.PmKvq;
import java.util.ArrayList;
import java.util.List;

/** Byte budgets for PM-KVQ that an average width just fits, once sequences have their full length. */
final class Budgets {

  private static final int PAGE = 128;
  private static final int BLOCK = 16;

  /** Widths that a plan chooses from. */
  private static final int[] WIDTHS = {2, 4, 8};

  private Budgets() {}

  /**
   * A cache whose budget ends at an average width.
   *
   * @param bits codes alone; parameters come on top
   */
  static KvCache cache(PmKvq method, double bits, MethodEntry.Request request) {
    long bytes = 0;
    for (int layer = 0; layer < request.geometry().layers(); layer++) {
      bytes += layerBytes(request.geometry(), layer, method.sinks(), bits, request.tokens());
    }
    return KvCache.builder(request.geometry())
        .method(method)
        .budgetBytes(bytes * request.sequences())
        .build();
  }

  /** The same with floors by layer and side, where the model's loss feels them least. */
  static KvCache planned(double bits, MethodEntry.Request request) {
    KvGeometry geometry = request.geometry();
    Sensitivities sensitivities =
        request
            .calibrations()
            .sensitivities()
            .orElseThrow(() -> new IllegalArgumentException("no gradients were recorded of this model"));
    double average = bits + parameterBits(geometry, 0);
    BitPlan plan =
        BitAllocator.of(geometry, sensitivities, PageCost.perToken(geometry))
            .widths(WIDTHS)
            .separateSides(true)
            .averageBits(average)
            .solve();
    List<Integer> keys = new ArrayList<>();
    List<Integer> values = new ArrayList<>();
    for (int layer = 0; layer < plan.layers(); layer++) {
      keys.add(plan.bits(layer, Side.KEYS));
      values.add(plan.bits(layer, Side.VALUES));
    }
    return cache(PmKvq.floors(keys, values), bits, request);
  }

  /** A float16 minimum and range for each token, head, side and group of channels. */
  private static double parameterBits(KvGeometry geometry, int layer) {
    int headDim = geometry.headDim(layer);
    int groups = (headDim + PAGE - 1) / PAGE;
    return 8.0 * 2 * Short.BYTES * groups / headDim;
  }

  private static long layerBytes(KvGeometry geometry, int layer, int sinks, double bits, int tokens) {
    long row = 2L * geometry.rowSize(layer);
    long pages = (tokens + PAGE) / PAGE; // one is begun by what a model writes beyond its answer
    long sinkRows = (sinks + BLOCK - 1) / BLOCK * BLOCK; // 16-bit rows come in blocks
    long window = row * (sinkRows + PAGE) * Short.BYTES;
    double page = PAGE * row * (bits + parameterBits(geometry, layer)) / 8;
    // Tasks are answered twice, freely and under a teacher: by a fork, which has a window of its own.
    return 2 * window + (long) Math.ceil(pages * page);
  }
}
