package dev.kvasir.prefix;

import dev.kvasir.file.ChainHash;
import dev.kvasir.file.KvBlock;
import dev.kvasir.prefix.store.BlockStore;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import javax.crypto.SecretKey;
import org.jspecify.annotations.Nullable;

/**
 * Brings the blocks of one text together, from whichever tier has the next one, nearest first. A tier is asked for all that
 * follows, and the others where it ends, until none knows the next block.
 */
final class Gathering {

  private final Tiers tiers;
  private final List<ChainHash> names;
  private final int shared;
  private final @Nullable SecretKey tenantKey;
  private final long end;
  private final ArrivingBlocks arriving;
  /** The next block, and how many tiers in a row did not have it. Of one thread at a time. */
  private int position;

  private int strangers;
  private int turn;

  /** Of the names of a text, those from a first one on. */
  Gathering(Tiers tiers, List<ChainHash> names, int first, int shared, @Nullable SecretKey tenantKey, long end) {
    this.position = first;
    this.tiers = tiers;
    this.names = names;
    this.shared = shared;
    this.tenantKey = tenantKey;
    this.end = end;
    this.arriving = new ArrivingBlocks(end);
  }

  /** Begins, and returns what comes. */
  ArrivingBlocks start() {
    next();
    return arriving;
  }

  /** Asks tiers in turn. Goes on where one of them answers, on its thread. */
  private void next() {
    while (position < names.size() && strangers <= tiers.stores.size() && !arriving.isFinished()) {
      int asked = turn;
      turn = (turn + 1) % (tiers.stores.size() + 1);
      if (asked == 0) {
        note(fromHost());
        continue;
      }
      fromStore(tiers.stores.get(asked - 1));
      return;
    }
    arriving.finish();
  }

  private void note(int given) {
    position += given;
    strangers = given > 0 ? 1 : strangers + 1; // who has just given all that it has need not be asked again
  }

  private int fromHost() {
    long begun = System.nanoTime();
    List<ChainHash> wanted = names.subList(position, names.size());
    List<ByteBuffer> found = tiers.host.longest(wanted);
    long bytes = 0;
    for (int i = 0; i < found.size(); i++) {
      bytes += found.get(i).remaining();
      arriving.arrive(new KvBlock(wanted.get(i), found.get(i)), Tier.HOST);
    }
    tiers.hostCounters.answered(begun, wanted.size(), found.size(), bytes);
    return found.size();
  }

  private void fromStore(StoreTier store) {
    List<ChainHash> wanted = names.subList(position, names.size());
    Delivery delivery = new Delivery(store, position);
    Duration left = Duration.ofNanos(Math.max(1, end - delivery.begun));
    store
        .getMany(wanted, left, delivery)
        .thenAccept(
            nothing -> {
              note(delivery.end(wanted.size()));
              next();
            });
  }

  /** What one store is asked for once. What it gives after its time is not taken: another one has been asked by then. */
  private final class Delivery implements BlockStore.Arrival {
    private final StoreTier store;
    private final int first;
    private final long begun = System.nanoTime();
    private int given;
    private long bytes;
    private boolean over;

    Delivery(StoreTier store, int first) {
      this.store = store;
      this.first = first;
    }

    @Override
    public synchronized boolean block(int index, ByteBuffer image) {
      if (over || index != given) {
        return false;
      }
      KvBlock block = opened(store, first + index, image);
      over = block == null || !arriving.arrive(block, store.tier);
      if (over) {
        return false;
      }
      given++;
      bytes += image.remaining();
      return first + given < names.size();
    }

    synchronized int end(int wanted) {
      over = true;
      store.counters.answered(begun, wanted, given, bytes);
      return given;
    }
  }

  private @Nullable KvBlock opened(StoreTier store, int index, ByteBuffer image) {
    ChainHash name = names.get(index);
    ByteBuffer block = BlockSeal.open(name, image, index < shared ? tiers.publicKey : tenantKey);
    if (block == null || !new BlockImage(block).is(name, index, tiers.blocks.fingerprint())) {
      store.reject(name, tiers.deadline);
      return null;
    }
    return new KvBlock(name, block);
  }
}
