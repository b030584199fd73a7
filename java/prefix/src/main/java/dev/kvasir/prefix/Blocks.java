package dev.kvasir.prefix;

import dev.kvasir.KvCache;
import dev.kvasir.KvGeometry;
import dev.kvasir.KvSequence;
import dev.kvasir.file.ChainHash;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.stream.IntStream;

/** Where the blocks of a cache's texts begin and end, how they are called, and which of them make a sequence. */
final class Blocks {

  private final KvCache cache;
  private final int sinks;
  private final byte[] fingerprint;
  private final byte[] salt;
  /** Layers that have rows of their own. */
  private final int[] layers;

  private final boolean slides;
  private final KnownNames names;

  Blocks(KvCache cache, byte[] salt) {
    KvGeometry geometry = cache.geometry();
    this.cache = cache;
    this.sinks = cache.method().sinks();
    this.fingerprint = cache.fingerprint();
    this.salt = salt.clone();
    this.layers = IntStream.range(0, geometry.layers()).filter(i -> geometry.source(i) == i).toArray();
    this.slides = IntStream.of(layers).anyMatch(i -> geometry.slidingWindow(i) > 0);
    this.names = new KnownNames(sinks + KvCache.PAGE_TOKENS, KvCache.PAGE_TOKENS);
  }

  byte[] fingerprint() {
    return fingerprint;
  }

  /** What so many tokens take in 16 bits. */
  long bytesIn16Bits(int tokens) {
    long elements = 0;
    for (int layer = 0; layer < cache.geometry().layers(); layer++) {
      elements += 2L * cache.geometry().rowSize(layer) * tokens;
    }
    return elements * Short.BYTES;
  }

  /** More than any block takes, with sinks, side tables and a seal: what is larger is none. */
  long mostBytes() {
    return 4 * bytesIn16Bits(sinks + KvCache.PAGE_TOKENS) + (1 << 20);
  }

  /** Whether a layer forgets old tokens. */
  boolean slides() {
    return slides;
  }

  int begin(int block) {
    return block == 0 ? 0 : tokens(block);
  }

  int end(int block) {
    return tokens(block + 1);
  }

  /** Tokens of so many blocks, those before the first included. */
  int tokens(int count) {
    return count == 0 ? 0 : sinks + count * KvCache.PAGE_TOKENS;
  }

  /** Whole blocks of so many tokens. */
  int count(long length) {
    return (int) Math.max(0, (length - sinks) / KvCache.PAGE_TOKENS);
  }

  /** How many of a request's first blocks are everybody's, of this many. */
  int shared(PrefixRequest request, int count) {
    return request.tenant() == null ? count : Math.min(count, count(request.shared()));
  }

  byte[] salt(PrefixRequest request, boolean shared) {
    return shared || request.tenant() == null ? salt : request.tenant().salt(salt);
  }

  /** The names of a request's first blocks. */
  List<ChainHash> names(PrefixRequest request, int count) {
    int shared = shared(request, count);
    List<ChainHash> list = new ArrayList<>(count);
    if (shared > 0) {
      list.addAll(chain(request, true, shared));
    }
    if (shared < count) {
      list.addAll(chain(request, false, count).subList(shared, count));
    }
    return list;
  }

  private List<ChainHash> chain(PrefixRequest request, boolean everybodys, int count) {
    return names.of(ChainHash.beginning(fingerprint, salt(request, everybodys)), request.tokens(), count);
  }

  /** Blocks that all layers of a sequence have compressed. */
  int whole(KvSequence sequence) {
    long least = Long.MAX_VALUE;
    for (int layer : layers) {
      // Layers that slide do not say how many pages they had; then what is left uncompressed does.
      boolean counts = cache.geometry().slidingWindow(layer) == 0;
      long length = sequence.length(layer) - cache.method().window();
      least = Math.min(least, counts ? sequence.pageCount(layer) : count(length));
    }
    return (int) least;
  }

  /** The most blocks, from the first on, that make a sequence: where layers slide, some may lack pages. */
  int attachable(List<ByteBuffer> images) {
    if (!slides) {
      return images.size();
    }
    List<BitSet> pages = images.stream().map(image -> new BlockImage(image).layersWithPages()).toList();
    for (int count = images.size(); count > 0; count--) {
      if (isComplete(pages, count)) {
        return count;
      }
    }
    return 0;
  }

  private boolean isComplete(List<BitSet> pages, int count) {
    for (int layer : layers) {
      long window = cache.geometry().slidingWindow(layer);
      long seen = window == 0 ? 0 : Math.max(0, tokens(count) - window);
      int needed = (int) (seen <= sinks ? 0 : (seen - sinks) / KvCache.PAGE_TOKENS);
      for (int block = Math.min(needed, count - 1); block < count; block++) {
        if (!pages.get(block).get(layer)) {
          return false;
        }
      }
    }
    return true;
  }
}
