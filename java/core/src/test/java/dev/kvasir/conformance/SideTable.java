package dev.kvasir.conformance;

import dev.kvasir.KvSequence;
import dev.kvasir.Side;
import java.util.Arrays;

/**
 * The vectors beside the pages of one layer, for all kv heads and both sides, and how they came about: the first pages
 * to be sealed brought {@code fixed} of them, each page from {@code firstAddingPage} on may have added one.
 *
 * @param vectors by side and kv head, each [count][headDim]
 * @param headDim elements of a vector
 * @param fixed vectors of the first pages
 * @param firstAddingPage pages that were sealed in one go with the first
 */
record SideTable(float[][][] vectors, int headDim, int fixed, long firstAddingPage) {

  /** What one page of one head's side sees of it. */
  record View(float[] vectors, int headDim, int fixed, int added) {

    /** The highest label that there is: a label is one byte. */
    int labels() {
      return Math.min(255, fixed + added);
    }

    /** Element of the vector that a label stands for; 0 for label 0. */
    float element(int label, int channel) {
      if (label == 0) {
        return 0;
      }
      int room = 255 - fixed;
      int index = label <= fixed ? label - 1 : fixed + Math.max(0, added - room) + label - fixed - 1;
      return vectors[index * headDim + channel];
    }
  }

  /** Reads the tables of layer 0 of a sequence whose first sealing append is over. */
  static SideTable of(KvSequence sequence, int kvHeads, int headDim, int fixed, long firstAddingPage) {
    float[][][] vectors = new float[2][kvHeads][];
    for (Side side : Side.values()) {
      for (int head = 0; head < kvHeads; head++) {
        vectors[side.ordinal()][head] = sequence.readTable(0, side, head);
      }
    }
    return new SideTable(vectors, headDim, fixed, firstAddingPage);
  }

  /** The same where all pages were sealed by one append. */
  static SideTable of(KvSequence sequence, int kvHeads, int headDim) {
    int fixed = sequence.readTable(0, Side.KEYS, 0).length / headDim;
    return of(sequence, kvHeads, headDim, fixed, sequence.pageCount(0));
  }

  View view(Side side, int kvHead, long page) {
    float[] all = vectors[side.ordinal()][kvHead];
    long added = Math.min(Math.max(0, page - firstAddingPage + 1), all.length / headDim - fixed);
    return new View(all, headDim, fixed, (int) added);
  }

  boolean sameAs(SideTable other) {
    return Arrays.deepEquals(vectors, other.vectors)
        && fixed == other.fixed
        && firstAddingPage == other.firstAddingPage;
  }
}
