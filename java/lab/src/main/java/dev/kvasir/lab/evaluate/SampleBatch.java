package dev.kvasir.lab.evaluate;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.lab.sample.Sample;
import dev.kvasir.lab.sample.SharedBeginning;
import dev.kvasir.runner.Decoder;
import dev.kvasir.runner.Model;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Samples that are run side by side, and how their sequences begin: by reading, or with what the 16-bit cache holds. Either
 * way what samples share goes into a cache once.
 */
final class SampleBatch {

  private final Decoder decoder;
  private final Model model;
  private final List<Sample> samples;
  private final List<SharedBeginning> groups;
  private final Transfer[] prompts;
  private @Nullable List<KvSequence> exact;

  SampleBatch(Decoder decoder, List<Sample> samples) {
    this.decoder = decoder;
    this.model = decoder.model();
    this.samples = samples;
    this.groups = SharedBeginning.of(samples);
    this.prompts = new Transfer[groups.size()];
  }

  List<Sample> samples() {
    return samples;
  }

  /** A cache for all of them. */
  MethodEntry.Request request(Calibrations calibrations) {
    int tokens = samples.stream().mapToInt(Sample::length).max().orElse(0);
    return new MethodEntry.Request(
        model.geometry(), groups.size(), samples.size() - groups.size(), tokens, calibrations);
  }

  /** Tokens that the model has to run, where it reads all or where prompts are transferred. */
  long tokens(boolean transferred) {
    if (transferred) {
      return samples.stream().mapToLong(Sample::scored).sum();
    }
    long all = samples.stream().mapToLong(Sample::length).sum();
    for (SharedBeginning group : groups) {
      all -= (group.samples().size() - 1L) * group.tokens();
    }
    return all;
  }

  /** Sequences that have read what they share with others; null if it was stopped. */
  @Nullable List<KvSequence> read(KvCache cache, StreamRunner runner, StreamRunner.Watcher watcher) {
    KvSequence[] sequences = new KvSequence[samples.size()];
    for (SharedBeginning group : groups) {
      KvSequence shared = cache.newSequence();
      if (group.tokens() > 0) {
        Sample one = samples.get(group.samples().get(0));
        int[] beginning = Arrays.copyOf(one.tokens(), group.tokens() + 1);
        Sample unscored = new Sample(one.set(), one.task(), beginning, group.tokens());
        if (!runner.run(List.of(unscored), List.of(shared), (sample, position, logits) -> {}, watcher)) {
          return null;
        }
      }
      fork(shared, group, sequences);
    }
    return List.of(sequences);
  }

  /** Says where the 16-bit cache has all samples. Its sequences must stay open. */
  void exact(List<KvSequence> sequences) {
    exact = sequences;
  }

  /** Sequences with all that comes before the first token that counts, compressed in one piece. */
  List<KvSequence> transfer(KvCache cache) {
    KvSequence[] sequences = new KvSequence[samples.size()];
    for (int g = 0; g < prompts.length; g++) {
      SharedBeginning group = groups.get(g);
      KvSequence shared = cache.newSequence();
      prompt(g).to(shared, group.tokens());
      fork(shared, group, sequences);
      for (int i : group.samples()) {
        new Transfer(model, exact.get(i), prompt(g).queries()).to(sequences[i], samples.get(i).scoredFrom());
      }
    }
    return List.of(sequences);
  }

  /** All of the first sample. */
  Transfer first() {
    return prompt(0);
  }

  private Transfer prompt(int group) {
    if (prompts[group] == null) {
      int index = groups.get(group).samples().get(0);
      Sample sample = samples.get(index);
      int end = sample.scoredFrom() > 1 ? sample.scoredFrom() : sample.length();
      KvSequence sequence = exact.get(index);
      prompts[group] = new Transfer(model, sequence, NewestQueries.of(decoder, sequence, sample, end));
    }
    return prompts[group];
  }

  private static void fork(KvSequence shared, SharedBeginning group, KvSequence[] sequences) {
    for (int i : group.samples()) {
      sequences[i] = i == group.samples().get(0) ? shared : shared.fork();
    }
  }
}
