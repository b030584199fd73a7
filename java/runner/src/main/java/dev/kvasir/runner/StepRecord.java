package dev.kvasir.runner;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.error.KvException;
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
  private long[] lengths = {};
  private int steps;
  private boolean recordable;
  private @Nullable KvCache cache;
  private int graphs;
  private CudaDevice.@Nullable Graph graph;

  StepRecord(CudaDevice device) {
    this.device = device;
  }

  /** Runs a step of these sequences, which have so many tokens in it together. Of one cache. */
  void run(List<KvSequence> sequences, int tokens, Runnable operations) {
    if (tokens != sequences.size() || !follows(sequences)) {
      forget();
      batch = tokens == sequences.size() ? sequences : List.of();
      if (cache != sequences.get(0).cache()) {
        cache = sequences.get(0).cache();
        graphs = 0;
      }
      recordable = graphs < MOST_GRAPHS;
    }
    if (!batch.isEmpty()) {
      lengths = sequences.stream().mapToLong(each -> each.length(0) + 1).toArray();
      if (steps++ == GRAPH_STEPS) {
        forgetGraph();
      }
    }
    if (batch.isEmpty() || steps <= PLAIN_STEPS || !recordable || !launched(operations)) {
      operations.run();
    }
  }

  /** Whether these are the sequences of the step before, each with its token. */
  private boolean follows(List<KvSequence> sequences) {
    if (!sequences.equals(batch)) {
      return false;
    }
    for (int i = 0; i < lengths.length; i++) {
      if (sequences.get(i).length(0) != lengths[i]) {
        return false;
      }
    }
    return true;
  }

  /** False, with nothing done, where such a step cannot be recorded. */
  private boolean launched(Runnable operations) {
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
        for (int i = 0; i < lengths.length; i++) {
          batch.get(i).truncate(lengths[i] - 1);
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
