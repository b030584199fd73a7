// Nearest-vector searches, as verbs that a backend supplies. k-means and pattern matching are built on them.
#pragma once

#include <cstddef>

namespace kvasir {

// Vectors in blocks of this many, channel by channel: blocks[b][c][i] is channel c of vector b * kMatchBlock + i. A
// search then needs no sums across lanes, and every backend adds in the same order: all return the same bits.
constexpr int kMatchBlock = 16;

inline size_t match_block_floats(int count, int dim) {
  return static_cast<size_t>((count + kMatchBlock - 1) / kMatchBlock) * kMatchBlock * dim;
}

// vectors: [count][dim]. The last block is padded with vectors that are never nearest.
inline void make_match_blocks(const float* vectors, int count, int dim, float* blocks) {
  constexpr float kFar = 1e30f;
  for (int first = 0; first < count; first += kMatchBlock) {
    for (int c = 0; c < dim; ++c) {
      for (int i = 0; i < kMatchBlock; ++i) {
        // Padding alternates in sign, so that it is far by squares and by range alike.
        const float far = c % 2 == 0 ? kFar : -kFar;
        *blocks++ = first + i < count ? vectors[static_cast<size_t>(first + i) * dim + c] : far;
      }
    }
  }
}

// rows: [count][dim]. labels[i] is the vector with the least distance to row i, the first of equals, and distances[i]
// that distance.
struct MatchKernels {
  using Search = void (*)(const float* rows, int count, int dim, const float* blocks, int vector_count, int* labels,
                          float* distances);
  Search squared;  // sum over channels of (x - m)^2
  Search min_max;  // max over channels of (x - m), minus min over channels of (x - m)
  // The squared distances of each row to all vectors of one block: out[row][kMatchBlock].
  void (*squared_table)(const float* rows, int count, int dim, const float* block, float* out);
};

}  // namespace kvasir
