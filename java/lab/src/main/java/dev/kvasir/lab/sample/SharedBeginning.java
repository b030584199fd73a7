package dev.kvasir.lab.sample;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Samples that begin alike, such as several questions about one text: what they share is read once, and forked.
 *
 * @param samples their places in a batch
 * @param tokens how many they share, none of them scored; 0 for a sample alone
 */
public record SharedBeginning(List<Integer> samples, int tokens) {

  /** Fewer tokens than this are read again. */
  private static final int LEAST = 256;

  /** All samples of a batch, each in one group. */
  public static List<SharedBeginning> of(List<Sample> batch) {
    List<SharedBeginning> groups = new ArrayList<>();
    for (int i = 0; i < batch.size(); i++) {
      int found = -1;
      for (int g = 0; g < groups.size() && found < 0; g++) {
        int shared = shared(batch, groups.get(g), i);
        if (shared >= LEAST) {
          List<Integer> samples = new ArrayList<>(groups.get(g).samples());
          samples.add(i);
          groups.set(g, new SharedBeginning(samples, shared));
          found = g;
        }
      }
      if (found < 0) {
        groups.add(new SharedBeginning(List.of(i), 0));
      }
    }
    return groups;
  }

  private static int shared(List<Sample> batch, SharedBeginning group, int index) {
    Sample first = batch.get(group.samples().get(0));
    Sample other = batch.get(index);
    int most = Math.min(first.scoredFrom(), other.scoredFrom());
    most = group.tokens() > 0 ? Math.min(most, group.tokens()) : most;
    int differ = Arrays.mismatch(first.tokens(), 0, most, other.tokens(), 0, most);
    return differ < 0 ? most : differ;
  }
}
