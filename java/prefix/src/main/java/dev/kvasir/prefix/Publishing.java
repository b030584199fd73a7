package dev.kvasir.prefix;

import dev.kvasir.KvSequence;
import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import java.util.ArrayList;
import java.util.List;

/** Brings the blocks of one sequence to the tiers below the pool, in the background, some at a time. */
final class Publishing {

  private static final int AT_ONCE = 16;

  private final Tiers tiers;
  private final PrefixRequest request;
  private final KvSequence sequence;
  private final int count;
  private long bytes;
  private int exported;

  /** A sequence of its own, which it closes in the end, and how many of its blocks to bring. */
  Publishing(Tiers tiers, PrefixRequest request, KvSequence sequence, int count) {
    this.tiers = tiers;
    this.request = request;
    this.sequence = sequence;
    this.count = count;
  }

  /** How many blocks one tier at least did not have. */
  int run() {
    Events.Publish event = Events.beginPublish();
    try (sequence) {
      List<ChainHash> names = tiers.blocks.names(request, count);
      List<Integer> known = new ArrayList<>();
      int first = count;
      for (int i = 0; i <= tiers.stores.size(); i++) {
        known.add(
            i == 0
                ? tiers.host.containsLongest(names, tiers.deadline).join()
                : tiers.stores.get(i - 1).containsLongest(names, tiers.deadline).join());
        first = Math.min(first, known.get(i));
      }
      for (int begin = first; begin < count; begin += AT_ONCE) {
        List<KvBlock> blocks = export(begin, Math.min(count, begin + AT_ONCE));
        bytes += bytesOf(blocks);
        exported += blocks.size();
        for (int i = 0; i < known.size(); i++) {
          put(i, names, begin, blocks, known.get(i));
        }
      }
      Events.end(event, count - first, bytes);
      return count - first;
    }
  }

  /** How many of them there were to bring: fewer where pages that are due wait for room. */
  int exported() {
    return exported;
  }

  /** What those blocks took. */
  long bytes() {
    return bytes;
  }

  /** Blocks under their names: up to where the tenant's begin those of everybody, then those of the tenant. */
  private List<KvBlock> export(int begin, int end) {
    int shared = tiers.blocks.shared(request, count);
    List<KvBlock> blocks = new ArrayList<>();
    if (begin < shared) {
      byte[] salt = tiers.blocks.salt(request, true);
      blocks.addAll(sequence.exportBlocks(request.tokens(), salt, begin, Math.min(end, shared) - begin));
    }
    int own = Math.max(begin, shared);
    if (own < end) {
      blocks.addAll(sequence.exportBlocks(request.tokens(), tiers.blocks.salt(request, false), own, end - own));
    }
    return blocks;
  }

  private void put(int tier, List<ChainHash> names, int begin, List<KvBlock> blocks, int known) {
    List<KvBlock> wanted = blocks.subList(Math.min(blocks.size(), Math.max(0, known - begin)), blocks.size());
    if (wanted.isEmpty()) {
      return;
    }
    int first = begin + blocks.size() - wanted.size();
    List<ChainHash> before = names.subList(0, first);
    if (tier == 0) {
      tiers.host.put(before, wanted);
      tiers.hostCounters.bytesWritten.add(bytesOf(wanted));
      return;
    }
    tiers.put(tiers.stores.get(tier - 1), request, before, wanted, first);
  }

  static long bytesOf(List<KvBlock> blocks) {
    return blocks.stream().mapToLong(block -> block.bytes().remaining()).sum();
  }
}
