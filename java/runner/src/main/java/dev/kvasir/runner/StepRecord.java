package dev.kvasir.runner;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.error.KvException;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Runs steps of decoding on a GPU, and records them: a batch whose sequences come again, one token of each, runs as one
 * CUDA graph after some steps, until another batch comes. Java has to launch nothing then but the graph.
 *
 * <p>What a graph works in, some megabytes for a model of 32 layers, belongs to the cache until that is closed. So a cache
 * gets so many graphs and no more: a server whose batches change all the time goes back to plain steps.
 */
final class StepRecord {

  private static final System.Logger LOG = System.getLogger(StepRecord.class.getName());

  /** Steps that a batch makes before it is recorded: many stay for few. */
  private static final int PLAIN_STEPS = 16;

  /** Graphs of one cache. */
  private static final int MOST_GRAPHS = 32;

  /** Steps of one graph: with some codecs it follows a sequence for 32K tokens (see KvCache.extend). */
  private static final int GRAPH_STEPS = 16384;

  private final CudaDevice device;
  private List<KvSequence> batch = List.of();
  /** Where the next tokens of the batch will be. */
  private int[] next = {};
  private int steps;
  private boolean recordable;
  private @Nullable KvCache cache;
  private int graphs;
  private CudaDevice.@Nullable Graph graph;

  StepRecord(CudaDevice device) {
    this.device = device;
  }

  /**
   * Runs a step of these sequences, of one cache.
   *
   * @param positions of all tokens of the step: where there is one of each sequence, its length
   */
  void run(List<KvSequence> sequences, int[] positions, Runnable operations) {
    boolean single = positions.length == sequences.size();
    if (!single || !sequences.equals(batch) || !Arrays.equals(positions, next)) {
      forget();
      batch = single ? sequences : List.of();
      if (cache != sequences.get(0).cache()) {
        cache = sequences.get(0).cache();
        graphs = 0;
      }
      recordable = graphs < MOST_GRAPHS;
    }
    if (single) {
      next = Arrays.stream(positions).map(each -> each + 1).toArray();
      if (steps++ == GRAPH_STEPS) {
        forgetGraph();
      }
    }
    if (!single || steps <= PLAIN_STEPS || !recordable || !launched(positions, operations)) {
      operations.run();
    }
  }

  /** False, with nothing done, where such a step cannot be recorded. */
  private boolean launched(int[] positions, Runnable operations) {
    try {
      batch.get(0).cache().extend(batch, device.stream());
    } catch (IllegalArgumentException e) { // of a sequence that graphs do not follow, because it was shifted
      return plainFromNowOn(e);
    }
    if (graph == null) {
      try {
        graphs++;
        graph = device.record(operations);
      } catch (KvException | IllegalArgumentException e) {
        for (int i = 0; i < positions.length; i++) {
          batch.get(i).truncate(positions[i]);
        }
        return plainFromNowOn(e);
      }
    }
    graph.launch();
    return true;
  }

  private boolean plainFromNowOn(RuntimeException why) {
    LOG.log(System.Logger.Level.DEBUG, "steps of this batch are not recorded", why);
    recordable = false;
    return false;
  }

  /** What was recorded is not run again: the rows that it works on are about to move. */
  void forget() {
    forgetGraph();
    batch = List.of();
  }

  private void forgetGraph() {
    steps = 0;
    if (graph != null) {
      graph.close();
      graph = null;
    }
  }
}
