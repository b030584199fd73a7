package dev.kvasir.runner.text;

import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.stream.IntStream;

/** The heart of byte-pair encoding: neighbouring tokens are merged, the best rule first, the leftmost of equals. */
final class Merger {

  /** What a pair of tokens becomes, and how early. */
  private record Merge(int rank, int result) {}

  /** A possible merge of the tokens at two places. */
  private record Candidate(int rank, int left, int right, int leftToken, int rightToken, int result) {}

  private final Map<Long, Merge> merges = new HashMap<>();

  /** Adds a rule; a pair's first rule stands. */
  void add(int left, int right, int rank, int result) {
    merges.putIfAbsent(key(left, right), new Merge(rank, result));
  }

  int rules() {
    return merges.size();
  }

  /** Merges tokens, which are overwritten, and adds what is left of them to {@code out}. Negative ones never merge. */
  void merge(int[] token, IntStream.Builder out) {
    // A linked list over places; a merge keeps the left place and removes the right one.
    int size = token.length;
    int[] next = new int[size];
    int[] previous = new int[size];
    for (int i = 0; i < size; i++) {
      next[i] = i + 1;
      previous[i] = i - 1;
    }
    PriorityQueue<Candidate> queue =
        new PriorityQueue<>(Comparator.comparingInt(Candidate::rank).thenComparingInt(Candidate::left));
    for (int i = 0; i + 1 < size; i++) {
      propose(queue, token, i, i + 1);
    }
    boolean[] removed = new boolean[size];
    while (!queue.isEmpty()) {
      Candidate best = queue.remove();
      // Out of date where one of its tokens has been merged meanwhile.
      if (removed[best.left()]
          || removed[best.right()]
          || token[best.left()] != best.leftToken()
          || token[best.right()] != best.rightToken()
          || next[best.left()] != best.right()) {
        continue;
      }
      token[best.left()] = best.result();
      removed[best.right()] = true;
      next[best.left()] = next[best.right()];
      if (next[best.left()] < size) {
        previous[next[best.left()]] = best.left();
        propose(queue, token, best.left(), next[best.left()]);
      }
      if (previous[best.left()] >= 0) {
        propose(queue, token, previous[best.left()], best.left());
      }
    }
    for (int i = 0; i < size; i = next[i]) {
      out.add(token[i]);
    }
  }

  private void propose(PriorityQueue<Candidate> queue, int[] token, int left, int right) {
    Merge merge = token[left] < 0 || token[right] < 0 ? null : merges.get(key(token[left], token[right]));
    if (merge != null) {
      queue.add(new Candidate(merge.rank(), left, right, token[left], token[right], merge.result()));
    }
  }

  private static long key(int left, int right) {
    return (long) left << 32 | right;
  }
}
