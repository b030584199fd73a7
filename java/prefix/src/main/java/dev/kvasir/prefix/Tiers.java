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

  /** The blocks of a request from this one on, on their way. */
  ArrivingBlocks gather(PrefixRequest request, List<ChainHash> names, int first, long end) {
    return new Gathering(this, names, first, blocks.shared(request, names.size()), keyOf(request), end).start();
  }

  /**
   * Gives a store blocks of a request, of which this is the first, as they may leave this process; waits for it.
   *
   * @param before names of those before, which the store must have, or none where it may lack them
   */
  void put(StoreTier store, PrefixRequest request, List<ChainHash> before, List<KvBlock> given, int first) {
    int shared = blocks.shared(request, first + given.size());
    List<KvBlock> sealed = new ArrayList<>();
    for (int i = 0; i < given.size(); i++) {
      ChainHash name = given.get(i).hash();
      SecretKey key = first + i < shared ? publicKey : keyOf(request);
      sealed.add(new KvBlock(name, BlockSeal.seal(name, given.get(i).bytes(), key)));
    }
    store.putMany(before, sealed, deadline).join();
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
    try {
      stores.forEach(StoreTier::close);
    } finally { // stores of others may throw
      host.close();
    }
  }
}
