package dev.kvasir.prefix;

import dev.kvasir.file.ChainHash;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Names of blocks that were asked for before. To make one takes four times as long as to find it here, and each waits for
 * the one before it. For many threads.
 */
final class KnownNames {

  /** About 12 MB of them: two million tokens. */
  private static final int MOST = 16_384;

  private final int firstTokens;
  private final int blockTokens;
  private final Map<BlockKey, ChainHash> names =
      new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<BlockKey, ChainHash> eldest) {
          return size() > MOST;
        }
      };

  /** For texts whose first block has so many tokens, and each of the others so many. */
  KnownNames(int firstTokens, int blockTokens) {
    this.firstTokens = firstTokens;
    this.blockTokens = blockTokens;
  }

  /** The names of the first blocks of a text: of those tokens, which fill so many. */
  List<ChainHash> of(ChainHash beginning, int[] tokens, int count) {
    List<ChainHash> list = new ArrayList<>(count);
    ChainHash last = beginning;
    synchronized (names) {
      for (ChainHash next = last; next != null && list.size() < count; ) {
        next = names.get(key(last, tokens, list.size()));
        if (next != null) {
          list.add(next);
          last = next;
        }
      }
    }
    int known = list.size();
    if (known < count) {
      list.addAll(last.following(end(known) - begin(known), blockTokens, tokens, begin(known)).subList(0, count - known));
      remember(beginning, tokens, list, known);
    }
    return list;
  }

  private void remember(ChainHash beginning, int[] tokens, List<ChainHash> list, int from) {
    synchronized (names) {
      for (int i = from; i < list.size(); i++) {
        names.put(key(i == 0 ? beginning : list.get(i - 1), tokens, i).copy(), list.get(i));
      }
    }
  }

  private BlockKey key(ChainHash before, int[] tokens, int block) {
    return new BlockKey(tokens, begin(block), end(block), before);
  }

  private int begin(int block) {
    return block == 0 ? 0 : end(block - 1);
  }

  private int end(int block) {
    return firstTokens + block * blockTokens;
  }
}
