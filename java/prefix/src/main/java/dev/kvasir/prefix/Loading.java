package dev.kvasir.prefix;

import dev.kvasir.KvCache;
import dev.kvasir.KvSequence;
import dev.kvasir.error.BudgetExceededException;
import dev.kvasir.error.KvFileException;
import dev.kvasir.file.KvBlock;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.function.ObjIntConsumer;
import org.jspecify.annotations.Nullable;

/** Blocks on their way into the cache: behind what was found in the pool, or from the first on. */
final class Loading {

  private static final int TRIES = 4;

  private final KvCache cache;
  private final Tiers tiers;
  private final ArrivingBlocks arriving;
  private final LivePrefixes.@Nullable Found behind;
  private boolean otherTables;

  Loading(KvCache cache, Tiers tiers, ArrivingBlocks arriving, LivePrefixes.@Nullable Found behind) {
    this.cache = cache;
    this.tiers = tiers;
    this.arriving = arriving;
    this.behind = behind;
  }

  /**
   * A sequence of what comes, behind what was found, or of as much of it as is right; null where none of it is. No more is
   * taken then.
   *
   * @param makeRoom what to do where so many blocks do not fit
   */
  @Nullable KvSequence attach(ObjIntConsumer<BudgetExceededException> makeRoom) {
    try {
      if (tiers.blocks.slides()) {
        arriving.cut(tiers.blocks.attachable(arriving.images()));
      }
      for (int i = 0; i < TRIES && !otherTables && !arriving.isEmpty(); i++) {
        try {
          return behind == null ? cache.attachBlocks(arriving) : cache.attachBlocks(behind.sequence(), arriving);
        } catch (KvFileException e) {
          refuse(e);
        } catch (BudgetExceededException e) {
          makeRoom.accept(e, arriving.size());
        }
      }
      return null;
    } finally {
      arriving.finish();
    }
  }

  /** Cuts at the block that is not right, and tells its tier. */
  private void refuse(KvFileException error) {
    int bad = arriving.atFault();
    if (bad < 0) {
      arriving.cut(0);
    } else if (behind != null && bad == 0 && error.reason() == KvFileException.Reason.ORDER) {
      otherTables = true;
    } else {
      tiers.reject(arriving.tierOf(bad), arriving.get(bad).hash());
      arriving.cut(bad);
    }
  }

  /** Whether blocks came that do not go with those they should stand behind, though nothing is wrong with them. */
  boolean isOfOtherTables() {
    return otherTables;
  }

  /** The number of the first block that came. */
  int first() {
    return behind == null ? 0 : behind.blocks();
  }

  /** Blocks of the sequence, once it is made. */
  int count() {
    return first() + arriving.size();
  }

  /** Those that came. */
  List<KvBlock> blocks() {
    return List.copyOf(arriving);
  }

  /** Where the tokens of the sequence are from. */
  Map<Tier, Integer> tokensByTier() {
    Map<Tier, Integer> tokens = new EnumMap<>(Tier.class);
    if (behind != null) {
      tokens.put(Tier.POOL, tiers.blocks.tokens(first()));
    }
    for (int i = first(); i < count(); i++) {
      tokens.merge(arriving.tierOf(i - first()), tiers.blocks.end(i) - tiers.blocks.begin(i), Integer::sum);
    }
    return Map.copyOf(tokens);
  }
}
