// The searches of base/match.h, written once: a lane is a vector, so distances grow channel by channel in every lane
// and no operation depends on the machine's vector length. Each backend includes this in one source file; nothing
// leaves it.
#pragma once

#include <cstring>

#include "base/match.h"

namespace kvasir {
namespace {

#if defined(__AVX512F__)
constexpr int kPartLanes = 16;
#elif defined(__AVX__)
constexpr int kPartLanes = 8;
#else
constexpr int kPartLanes = 4;
#endif
constexpr int kParts = kMatchBlock / kPartLanes;
typedef float MatchPart __attribute__((vector_size(kPartLanes * sizeof(float))));

#define KVASIR_INLINE inline __attribute__((always_inline))

// Distances of one row to the vectors of part of a block.
struct SquaredDistance {
  MatchPart sum;
  KVASIR_INLINE void begin(const MatchPart& difference) { sum = difference * difference; }
  KVASIR_INLINE void add(const MatchPart& difference) { sum += difference * difference; }
  KVASIR_INLINE void total(MatchPart& out) const { out = sum; }
};

struct ResidualRange {
  MatchPart lowest, highest;
  KVASIR_INLINE void begin(const MatchPart& difference) { lowest = highest = difference; }
  KVASIR_INLINE void add(const MatchPart& difference) {
    lowest = difference < lowest ? difference : lowest;
    highest = difference > highest ? difference : highest;
  }
  KVASIR_INLINE void total(MatchPart& out) const { out = highest - lowest; }
};

// kRows rows against part of a block: its lanes are loaded once for all rows.
template <class Distance, int kRows>
KVASIR_INLINE void distances_to_part(const float* rows, int dim, const float* block, int part,
                                     MatchPart (&out)[kRows]) {
  Distance distance[kRows];
  MatchPart m;
  memcpy(&m, block + part * kPartLanes, sizeof m);
  for (int r = 0; r < kRows; ++r) distance[r].begin(rows[static_cast<size_t>(r) * dim] - m);
  for (int c = 1; c < dim; ++c) {
    memcpy(&m, block + c * kMatchBlock + part * kPartLanes, sizeof m);
    for (int r = 0; r < kRows; ++r) distance[r].add(rows[static_cast<size_t>(r) * dim + c] - m);
  }
  for (int r = 0; r < kRows; ++r) distance[r].total(out[r]);
}

template <class Distance, int kRows>
KVASIR_INLINE void match_rows(const float* rows, int dim, const float* blocks, int vector_count, int* labels,
                              float* distances) {
  for (int r = 0; r < kRows; ++r) {
    distances[r] = __builtin_inff();
    labels[r] = 0;  // stays where no distance is below infinity
  }
  for (int first = 0; first < vector_count; first += kMatchBlock, blocks += kMatchBlock * dim) {
    for (int part = 0; part < kParts; ++part) {
      MatchPart totals[kRows];
      distances_to_part<Distance>(rows, dim, blocks, part, totals);
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kPartLanes; ++i) {
          if (totals[r][i] < distances[r]) {
            distances[r] = totals[r][i];
            labels[r] = first + part * kPartLanes + i;
          }
        }
      }
    }
  }
}

template <class Distance>
void match(const float* rows, int count, int dim, const float* blocks, int vector_count, int* labels,
           float* distances) {
  constexpr int kRows = 4;
  int r = 0;
  for (; r + kRows <= count; r += kRows) {
    match_rows<Distance, kRows>(rows + static_cast<size_t>(r) * dim, dim, blocks, vector_count, labels + r,
                                distances + r);
  }
  for (; r < count; ++r) {
    match_rows<Distance, 1>(rows + static_cast<size_t>(r) * dim, dim, blocks, vector_count, labels + r, distances + r);
  }
}

void squared_table(const float* rows, int count, int dim, const float* block, float* out) {
  for (int r = 0; r < count; ++r) {
    for (int part = 0; part < kParts; ++part) {
      MatchPart totals[1];
      distances_to_part<SquaredDistance>(rows + static_cast<size_t>(r) * dim, dim, block, part, totals);
      memcpy(out + static_cast<size_t>(r) * kMatchBlock + part * kPartLanes, totals, sizeof totals);
    }
  }
}

constexpr MatchKernels kMatchKernels = {match<SquaredDistance>, match<ResidualRange>, squared_table};

#undef KVASIR_INLINE

}  // namespace
}  // namespace kvasir
