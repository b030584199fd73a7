package dev.kvasir.prefix;

import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import dev.kvasir.prefix.store.MemoryBlockStore;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import javax.crypto.SecretKey;
import org.jspecify.annotations.Nullable;

/** What is below the pool: memory of this machine, then stores, the nearest first. */
final class Tiers {

  final Blocks blocks;
  final MemoryBlockStore host;
  final TierCounters hostCounters = new TierCounters();
  final List<StoreTier> stores;
  final @Nullable SecretKey publicKey;
  final Duration deadline;

  Tiers(
      Blocks blocks,
      MemoryBlockStore host,
      List<StoreTier> stores,
      @Nullable SecretKey publicKey,
      Duration deadline) {
    this.blocks = blocks;
    this.host = host;
    this.stores = stores;
    this.publicKey = publicKey;
    this.deadline = deadline;
  }

  @Nullable SecretKey keyOf(PrefixRequest request) {
    return request.tenant() == null ? publicKey : request.tenant().key();
  }

  /** The blocks of a request, on their way. */
  ArrivingBlocks gather(PrefixRequest request, List<ChainHash> names, long end) {
    return new Gathering(this, names, blocks.shared(request, names.size()), keyOf(request), end).start();
  }

  /** How many blocks are there, in whichever tiers, from the first on. */
  int available(List<ChainHash> names, long end) {
    int count = 0;
    int strangers = 0;
    for (int turn = 0; count < names.size() && strangers <= stores.size(); turn = (turn + 1) % (stores.size() + 1)) {
      List<ChainHash> rest = names.subList(count, names.size());
      int more = turn == 0 ? host.containsLongest(rest, deadline).join() : contains(stores.get(turn - 1), rest, end);
      count += more;
      strangers = more > 0 ? 1 : strangers + 1;
    }
    return count;
  }

  private static int contains(StoreTier store, List<ChainHash> names, long end) {
    Duration left = Duration.ofNanos(end - System.nanoTime());
    return left.isNegative() ? 0 : store.containsLongest(names, left).join();
  }

  /** Gives a store blocks of a request, of which this is the first, as they may leave this process; waits for it. */
  void put(StoreTier store, PrefixRequest request, List<KvBlock> given, int first) {
    int shared = blocks.shared(request, first + given.size());
    List<KvBlock> sealed = new ArrayList<>();
    for (int i = 0; i < given.size(); i++) {
      ChainHash name = given.get(i).hash();
      SecretKey key = first + i < shared ? publicKey : keyOf(request);
      sealed.add(new KvBlock(name, BlockSeal.seal(name, given.get(i).bytes(), key)));
    }
    store.putMany(sealed, deadline).join();
  }

  /** A block that came from a tier is not what it should be, or does not go with those before it. */
  void reject(Tier tier, ChainHash name) {
    host.remove(name);
    if (tier == Tier.HOST) {
      hostCounters.rejected.increment();
    }
    for (StoreTier store : stores) {
      if (store.tier == tier) {
        store.reject(name, deadline);
      }
    }
  }

  void close() {
    stores.forEach(StoreTier::close);
    host.close();
  }
}
