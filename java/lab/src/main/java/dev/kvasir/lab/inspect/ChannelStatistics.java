package dev.kvasir.lab.inspect;

import dev.kvasir.Side;
import java.util.Arrays;

/**
 * How wide the channels of one side of one kv head are, which is what a quantiser has to deal with: keys tend to have
 * few channels that are much wider than all others, so that sharing parameters within a channel pays.
 *
 * @param layer the layer
 * @param side keys or values
 * @param head the kv head
 * @param ranges largest minus smallest element of each channel
 * @param largest largest magnitude
 * @param outlierRatio range of the widest channel over that of the median one
 * @param tokenOverChannel mean range within a token over the mean range within a channel: above 1, parameters for each
 *     channel serve better than parameters for each token
 */
public record ChannelStatistics(
    int layer, Side side, int head, double[] ranges, double largest, double outlierRatio, double tokenOverChannel) {

  /** The statistics of one side of one kv head. */
  public static ChannelStatistics of(Recording recording, int layer, Side side, int head) {
    int channels = recording.model().geometry().headDim(layer);
    int stride = recording.model().geometry().rowSize(layer);
    float[] rows = recording.rows(layer, side);
    double[] low = new double[channels];
    double[] high = new double[channels];
    Arrays.fill(low, Double.POSITIVE_INFINITY);
    Arrays.fill(high, Double.NEGATIVE_INFINITY);
    double largest = 0;
    double tokenRanges = 0;
    for (int t = 0; t < recording.tokens(); t++) {
      double least = Double.POSITIVE_INFINITY;
      double most = Double.NEGATIVE_INFINITY;
      for (int c = 0; c < channels; c++) {
        double x = rows[t * stride + head * channels + c];
        low[c] = Math.min(low[c], x);
        high[c] = Math.max(high[c], x);
        least = Math.min(least, x);
        most = Math.max(most, x);
        largest = Math.max(largest, Math.abs(x));
      }
      tokenRanges += most - least;
    }
    double[] ranges = new double[channels];
    Arrays.setAll(ranges, c -> high[c] - low[c]);
    double[] sorted = ranges.clone();
    Arrays.sort(sorted);
    double median = sorted[channels / 2];
    double mean = Arrays.stream(ranges).average().orElse(0);
    return new ChannelStatistics(
        layer,
        side,
        head,
        ranges,
        largest,
        median == 0 ? 0 : sorted[channels - 1] / median,
        mean == 0 ? 0 : tokenRanges / recording.tokens() / mean);
  }
}
