// Rows of whole numbers times a square matrix of them (codecs/basis.h has its order), in 32 bits. Sums are exact, so
// that their order does not matter; where they leave 32 bits, they wrap around on all machines.
//
// AArch64 with instructions for bytes multiplies numbers by their halves, n = 256 h + l, which are signed bytes
// (codecs/row_numbers.h): four products of bytes, but four times as many in an instruction, and twice as many
// instructions at a time. Other machines multiply pairs of numbers.
#pragma once

#include "codecs/page_format.h"
#include "kernels/cpu/simd.h"

namespace kvasir::KVASIR_LEVEL {

constexpr int kNumberRows = 4;  // multiplied together: as many as registers hold the sums of

#if defined(__ARM_FEATURE_DOTPROD)
class NumberMatrix {
 public:
  void take(const int16_t* pairs, int d) {
    d_ = d;
    U32(*to)[2][4] = vectors_;
    for (int c = 0; c < d; c += kLanes) {
      for (int i = 0; i < d; i += 16, ++to) {
        for (int step = 0; step < 4; ++step) {
          const int16_t* four = pairs + (static_cast<size_t>(i / 2 + 2 * step) * d + c) * 2;
          const I16 first = load(four), second = load(four + 2 * d);
          (*to)[0][step] = bytes_of_pairs<0>(first, second);
          (*to)[1][step] = bytes_of_pairs<1>(first + 128, second + 128);
        }
      }
    }
  }

  // out[row] = the sums of rows[row] with the columns, times their units.
  void multiply(const int16_t* rows, const float* units, float* out) const {
    // Rows of low halves are even, those of high ones odd.
    alignas(64) int8_t bytes[2 * kNumberRows * kMaxHeadDim];
    for (int r = 0; r < kNumberRows; ++r) {
      const int16_t* row = rows + r * d_;
      int8_t* low = bytes + 2 * r * d_;
      for (int i = 0; i < d_; ++i) low[i] = static_cast<int8_t>(row[i]);
      for (int i = 0; i < d_; ++i) low[d_ + i] = static_cast<int8_t>((row[i] + 128) >> 8);
    }
    arrange_rows(bytes, 2 * kNumberRows, d_, 0, d_);
    const U32(*vectors)[2][4] = vectors_;
    for (int c = 0; c < d_; c += kLanes) {
      I32 sums[2 * kNumberRows][2] = {};
      for (int i = 0; i < d_; i += 16) dot_unit<true>(*vectors++, bytes + i, d_, sums);
      settle(sums);
      const F32 unit = load(units + c);
#pragma GCC unroll 4
      for (int r = 0; r < kNumberRows; ++r) {
        const U32 low = (U32)sums[2 * r][0], high = (U32)sums[2 * r + 1][1];
        const U32 middle = (U32)sums[2 * r][1] + (U32)sums[2 * r + 1][0];
        store(out + r * d_ + c, to_float((I32)(low + (middle << 8) + (high << 16))) * unit);
      }
    }
  }

 private:
  int d_ = 0;
  U32 vectors_[kMaxHeadDim / kLanes * (kMaxHeadDim / 16)][2][4];  // low halves, high halves, of 16 channels
};
#else
class NumberMatrix {
 public:
  void take(const int16_t* pairs, int d) {
    pairs_ = pairs;
    d_ = d;
  }

  // out[row] = the sums of rows[row] with the columns, times their units.
  void multiply(const int16_t* rows, const float* units, float* out) const {
    // Sums take half of the registers.
    constexpr int kVectors = kRegisters / 2 / kNumberRows * sizeof(I32) / sizeof(PairSums);
    int c = 0;
    for (; c + kVectors * kLanes <= d_; c += kVectors * kLanes) multiply_columns<kVectors>(rows, c, units, out);
    for (; c < d_; c += kLanes) multiply_columns<1>(rows, c, units, out);
  }

 private:
  template <int kVectors>
  void multiply_columns(const int16_t* rows, int c, const float* units, float* out) const {
    PairSums sums[kNumberRows][kVectors] = {};
    for (int i = 0; i < d_; i += 2) {
      const int16_t* pairs = pairs_ + (static_cast<size_t>(i / 2) * d_ + c) * 2;
      I16 vectors[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) vectors[v] = load(pairs + v * 2 * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kNumberRows; ++r) {
        int32_t pair;
        memcpy(&pair, rows + r * d_ + i, sizeof pair);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) add_pairs(sums[r][v], vectors[v], (I16)splat(pair));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kNumberRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int at = c + v * kLanes;
        store(out + r * d_ + at, to_float(total(sums[r][v])) * load(units + at));
      }
    }
  }

  const int16_t* pairs_ = nullptr;
  int d_ = 0;
};
#endif

}  // namespace kvasir::KVASIR_LEVEL
