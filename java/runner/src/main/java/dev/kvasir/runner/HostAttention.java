package dev.kvasir.runner;

import dev.kvasir.KvSequence;
import dev.kvasir.Need;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;

/** How a step of many sequences goes into a cache: the one place that knows which of its calls are used for that. */
final class HostAttention {

  /**
   * Appends the feeds' keys and values to a layer.
   *
   * @param queries {@code [rows][queryHeads][headDim]}, rows in the order of the feeds
   * @param keys {@code [rows][kvHeads][headDim]}
   * @param values the same shape
   */
  void append(int layer, List<Decoder.Feed> feeds, FloatBuffer queries, FloatBuffer keys, FloatBuffer values) {
    var cache = feeds.get(0).sequence().cache();
    int rowSize = cache.geometry().rowSize(layer);
    int querySize = cache.geometry().querySize(layer);
    boolean showQueries = cache.method().needs().contains(Need.OBSERVED_QUERIES);
    int row = 0;
    for (Decoder.Feed feed : feeds) {
      if (showQueries && feed.sequence().length(layer) == 0) {
        // Pages of the first chunk are sealed before attention sees its queries.
        feed.sequence().observe(layer, queries.slice(row * querySize, feed.count() * querySize), feed.count());
      }
      int size = feed.count() * rowSize;
      feed.sequence().append(layer, keys.slice(row * rowSize, size), values.slice(row * rowSize, size), feed.count());
      row += feed.count();
    }
  }

  /**
   * What queries find there.
   *
   * @param out the shape of the queries
   */
  void attend(int layer, List<Decoder.Feed> feeds, FloatBuffer queries, FloatBuffer out) {
    var cache = feeds.get(0).sequence().cache();
    int querySize = cache.geometry().querySize(layer);
    int row = 0;
    for (int i = 0; i < feeds.size(); ) {
      // Sequences with as many new tokens go in one call.
      int count = feeds.get(i).count();
      List<KvSequence> together = new ArrayList<>();
      for (; i < feeds.size() && feeds.get(i).count() == count; i++) {
        together.add(feeds.get(i).sequence());
      }
      int size = together.size() * count * querySize;
      cache.attend(layer, together, queries.slice(row * querySize, size), out.slice(row * querySize, size), count);
      row += together.size() * count;
    }
  }
}
