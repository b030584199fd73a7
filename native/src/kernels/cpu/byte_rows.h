// Float rows as signed bytes, so that byte dot products can multiply them with codes.
//
// A row becomes integers t = round(value / scale). Exact mode takes 15 bits, t = 128 * high + low, in two byte rows.
// Fast mode takes 8 bits in one byte row, where that is good enough: a row whose largest value towers over the others
// (outlier channels, one token that has all the weight) would lose the others, and is split as well.
#pragma once

#include "kernels/cpu/code_dots.h"
#include "kernels/cpu/simd.h"

namespace kvasir::KVASIR_LEVEL {

constexpr float kSplitLimit = 127.0f * 128.0f;  // high in -127..127, low in -64..63
constexpr float kByteLimit = 127.0f;
// The smallest peak keeps the scale and its inverse normal floats. Rows below it lose precision that float32 results
// could hardly show.
constexpr float kSmallestPeak = kSplitLimit * 1.2e-38f;

// Quantising works on whole groups of four vectors: buffers of values and bytes have room for them.
constexpr int kGroupLanes = 4 * kLanes;

// What is needed of a float row to make bytes of it, lane by lane.
struct RowStatistics {
  F32 peak;    // largest magnitude
  F32 energy;  // sum of squares
};

// Whether one byte row is good enough. Rounding to multiples of peak / 127 adds the square of that over 12 per value,
// and fast mode allows a ten thousandth of the energy; half of it leaves room for chance. Squares that vanish say
// nothing.
inline bool one_byte_is_enough(float peak, float energy, int size) {
  const float scale = peak / kByteLimit;
  return energy > 1e-30f && scale * scale * static_cast<float>(size) <= 12.0f * 5e-5f * energy;
}

// Sums t, or t * weights where there are any.
class WeightedSum {
 public:
  explicit WeightedSum(const float* weights) : weights_(weights) {}
  void add(I32 t, int x) { sums_ = weights_ ? fma(to_float(t), load(weights_ + x), sums_) : sums_ + to_float(t); }
  float total() const { return sum(sums_); }

 private:
  const float* weights_;
  F32 sums_ = splat(0.0f);
};

// Four vectors of t on their way to two byte rows, and what the products with these add up to.
struct SplitBytes {
  I32 high[4] = {}, low[4] = {};

  void put(int i, I32 t) {
    high[i] = (t + 64) >> 7;
    low[i] = t - (high[i] << 7);
  }
  void write(int8_t* highs, int8_t* lows) const {
    store_bytes(highs, high[0], high[1], high[2], high[3]);
    store_bytes(lows, low[0], low[1], low[2], low[3]);
  }
  static I32 join(I32 high, I32 low) { return (high << 7) + low; }
};

// Writes the bytes of one row and returns the sum of t, or of t * weights. What is beyond `size`, up to a multiple of
// kGroupLanes, must be 0 in values and finite in weights.
inline float split_to_bytes(const float* values, int size, F32 inverse, const float* weights, int8_t* high,
                            int8_t* low) {
  WeightedSum sums(weights);
  for (int x = 0; x < size; x += kGroupLanes) {
    SplitBytes bytes;
    for (int i = 0; i < 4; ++i) {
      const I32 t = round(load(values + x + i * kLanes) * inverse);
      sums.add(t, x + i * kLanes);
      bytes.put(i, t);
    }
    bytes.write(high + x, low + x);
  }
  return sums.total();
}

inline float round_to_bytes(const float* values, int size, F32 inverse, const float* weights, int8_t* bytes) {
  WeightedSum sums(weights);
  for (int x = 0; x < size; x += kGroupLanes) {
    I32 t[4];
    for (int i = 0; i < 4; ++i) {
      t[i] = round(load(values + x + i * kLanes) * inverse);
      sums.add(t[i], x + i * kLanes);
    }
    store_bytes(bytes + x, t[0], t[1], t[2], t[3]);
  }
  return sums.total();
}

// Input rows of a tile, as many as fit into kMaxByteRows byte rows.
struct RowBlock {
  int rows;
  int byte_rows;
  alignas(64) int8_t bytes[kMaxByteRows * kMaxSize + kGroupLanes];
  struct Row {
    int byte_row;  // its first
    bool split;    // and the one after it
    float scale;
    float sum;     // of t, or t * weights
    float offset;  // the caller's
  } row[kMaxByteRows];

  // Adds a row of values at x_begin.. and returns true, or returns false where there is no room for it.
  bool add(const float* values, int x_begin, int size, const RowStatistics& statistics, bool fast, const float* weights,
           float offset) {
    const float true_peak = highest(statistics.peak);
    const float peak = true_peak > kSmallestPeak ? true_peak : kSmallestPeak;
    const bool split = !fast || !one_byte_is_enough(peak, sum(statistics.energy), size);
    if (byte_rows + 1 + split > kMaxByteRows) return false;
    int8_t* to = bytes + byte_rows * kMaxSize + x_begin;
    const float limit = split ? kSplitLimit : kByteLimit;
    const float scale = peak * (1.0f / limit);
    const F32 inverse = splat(limit / peak);
    const float total = split ? split_to_bytes(values, size, inverse, weights, to, to + kMaxSize)
                              : round_to_bytes(values, size, inverse, weights, to);
    row[rows] = {byte_rows, split, scale, total, offset};
    byte_rows += 1 + split;
    ++rows;
    return true;
  }

  // After the last row, before they are multiplied.
  void arrange(int x_begin, int x_end) { arrange_rows(bytes, byte_rows, kMaxSize, x_begin, x_end); }
};

}  // namespace kvasir::KVASIR_LEVEL
