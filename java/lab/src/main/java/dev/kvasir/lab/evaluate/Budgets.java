package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.PmKvq;

/** Byte budgets for PM-KVQ that a width just fits, once sequences have their full length. */
final class Budgets {

  private static final int PAGE = 128;

  private Budgets() {}

  /** A cache whose budget ends at the method's floor. */
  static KvCache cache(PmKvq method, MethodEntry.Request request) {
    long bytes = 0;
    for (int layer = 0; layer < request.geometry().layers(); layer++) {
      int floor = method.keyFloors().get(0);
      bytes += layerBytes(request.geometry(), layer, method.sinks(), floor, request.tokens());
    }
    return KvCache.builder(request.geometry())
        .method(method)
        .budgetBytes(bytes * request.sequences())
        .build();
  }

  /** Windows and sinks in 16 bits; pages with a float16 minimum and range for each token, head and side. */
  private static long layerBytes(KvGeometry geometry, int layer, int sinks, int bits, int tokens) {
    long heads = 2L * geometry.kvHeads(layer);
    int headDim = geometry.headDim(layer);
    long groups = (headDim + PAGE - 1) / PAGE;
    long pages = (tokens + PAGE) / PAGE; // one is begun by what a model writes beyond its answer
    long window = heads * headDim * (sinks + PAGE) * Short.BYTES;
    // Tasks are answered twice, freely and under a teacher: by a fork, which has a window of its own.
    return 2 * window + pages * heads * PAGE * (headDim * bits / 8 + 4 * groups);
  }
}
