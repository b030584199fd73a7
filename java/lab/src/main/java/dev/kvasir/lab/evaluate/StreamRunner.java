package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvMethod;
import dev.kvasir.KvSequence;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.runner.Decoder;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;

/**
 * Feeds samples through a cache side by side, with the result of token-by-token decoding in fewer steps.
 *
 * <p>What a token sees depends on how it is fed in one way only: when a page is sealed, its tokens change from 16 bits
 * to packed. Pages are sealed at lengths {@code sinks + window + 128 k}, so tokens up to just before such a length may
 * go together, each still seeing exactly what it would have seen alone; the token that seals goes alone.
 */
final class StreamRunner {

  private static final int PAGE = 128;

  /** Takes the logits that count. */
  interface Sink {
    /** Logits after token {@code position} of a sample: its prediction of token {@code position + 1}. */
    void accept(int sample, int position, float[] logits);
  }

  /** Hears of every step. */
  interface Watcher {
    /** So many tokens have been run in this step. */
    void advanced(int tokens);
  }

  private final Decoder decoder;
  private final BooleanSupplier stopped;

  StreamRunner(Decoder decoder, BooleanSupplier stopped) {
    this.decoder = decoder;
    this.stopped = stopped;
  }

  /**
   * Runs the samples from where their sequences are to their ends. Returns false if it was stopped before.
   *
   * @param sequences one for each sample, in one cache
   */
  boolean run(List<Sample> samples, List<KvSequence> sequences, Sink sink, Watcher watcher) {
    int[] lengths = sequences.stream().mapToInt(sequence -> (int) sequence.length()).toArray();
    while (true) {
      List<Decoder.Feed> feeds = new ArrayList<>();
      List<Integer> active = new ArrayList<>();
      int tokens = 0;
      for (int i = 0; i < samples.size(); i++) {
        Sample sample = samples.get(i);
        int count = Math.min(sample.length() - lengths[i], together(sequences.get(i).cache(), lengths[i]));
        if (count > 0) {
          int wanted = Math.max(0, Math.min(count, lengths[i] + count - sample.scoredFrom()));
          feeds.add(new Decoder.Feed(sequences.get(i), sample.tokens(), lengths[i], count, wanted));
          active.add(i);
          lengths[i] += count;
          tokens += count;
        }
      }
      if (feeds.isEmpty()) {
        return true;
      }
      if (stopped.getAsBoolean()) {
        return false;
      }
      decoder.decode(feeds, (feed, token, logits) -> sink.accept(active.get(feed), token, logits));
      watcher.advanced(tokens);
    }
  }

  /** Tokens that a sequence of this length may take at once. */
  static int together(KvCache cache, int length) {
    KvMethod method = cache.method();
    int kept = method.sinks() + method.window();
    int seal = length < kept + PAGE ? kept + PAGE : kept + ((length - kept) / PAGE + 1) * PAGE;
    return Math.max(1, Math.min(PAGE - 1, seal - 1 - length));
  }
}
