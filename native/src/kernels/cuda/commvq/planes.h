// Fast key tables of CommVQ: planes of bytes, summed up on tensor cores.
//
// Entries become whole numbers of a step that each RoPE pair of a kv head has for itself. A plane is one stage's table
// of 64 rows of signed bytes, and counts in 2^level steps, so that stages with small entries are as fine as they need
// to be and those with large ones have room:
//
//   one plane                   entry = step * 2^level * byte
//   two planes, one of them low entry = step * (2^4 * high + low), where low has four bits
//   two planes of bytes         entry = step * (2^6 * high + low)
//
// What a look-up loses is step^2 / 12 in each component, 4^level times that in a plane of its own. Stages have two
// planes where one would lose too much: the fewest of them for which keys lose kPlaneTolerance of their variance, on
// average over pairs and no pair more than four times as much. 12 bits are enough for this, and rows of a low plane are
// half as long. Second planes are of bytes where they cost nothing in the last round of four, where planes are cut into
// slices, and for head dims whose blocks of 16 bytes do not come in fours. Scores are then off by that part of
// their variance, and outputs by at most that times the variance of scores, about: 1e-4 for a variance of 4. Tables
// that the library trains are whole numbers of such steps (whole_tables.h), with two planes for the first stage, and
// lose nothing. Those trained elsewhere have two planes for three to nine of their stages, because their first stages
// have large entries; tables of uniform random numbers of equal size need none.
//
// A slice is as table_layout.h has it, of up to 64 pairs and some of the planes, with rows of 128 bytes:
//
//   double  turns[64], float step[64], float magnitude, as everywhere
//   uint8_t stage[32], level[32]     of each plane; those after folded ones, and low ones, begin at multiples of 4
//   rows    [4][64]                  of planes that are folded, if there are any
//   rows    [planes][64]             of others, pair after pair; 32 bytes are left free after each plane
//   rows    [low planes / 2][64]     of two low planes, 64 bytes each
//
// Folded planes. Four lanes look up rows in four planes at a time, for two tokens each. Where rounds of four leave one
// plane or two, half of the lanes or more would look up nothing. So these are folded: two planes are there twice, and
// two lanes have one of the tokens, two the other; one is there four times, and a lane has one code of one token. Where
// that takes too much memory, or where three planes are left, lanes without a plane read zeros.
//
// A block of 16 bytes of a low plane is for two blocks of the plane of bytes beside it. Upper halves of bytes are what
// the second one adds. What the first one adds is the whole signed byte, so that nothing needs to be cut out: bytes
// beside it are smaller by the upper half.
//
// Rows are read in blocks of 8 pairs, and odd tokens read block c ^ 2 where even ones read block c: eight lanes, of two
// tokens and four planes, must meet in no bank of shared memory. So the planes of a round of four begin 0, 1, 4 and 5
// blocks after a multiple of 128 bytes: the free 32 bytes are before the rows of odd planes as well as after them. Rows
// of low planes are read 16 pairs at a time, odd tokens another of the two such blocks of 32 pairs; the four planes are
// then 0, 4, 2 and 6 blocks apart. Where blocks do not come in fours, odd tokens read block c ^ 1, and planes begin 0,
// 2, 4 and 6 blocks after a multiple of 128 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/commvq/table_layout.h"
#include "kernels/cuda/commvq/whole_tables.h"
#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

constexpr double kPlaneTolerance = 2.5e-5;
constexpr int kPlaneRowBytes = 128;
constexpr int kPlaneBytes = kEntryStride * kPlaneRowBytes + kPlaneGap;
constexpr int kPlaneBlockPairs = 8;
constexpr int kLowBits = 4;           // of an entry in a low plane, and so the level of the plane of bytes beside it
constexpr int kRoundPlanes = 4;       // planes that one step of the tensor cores takes
constexpr int kPlaneScoreWarps = 12;  // as many as have registers for 16 loads on their way

// Where a plane's stage and level stand in a slice.
constexpr int kPlaneStagesAt = 12 * kMaxSlicePairs + 4;
constexpr int kPlaneLevelsAt = kPlaneStagesAt + kMaxSliceStages;

KVASIR_HOST_DEVICE constexpr int plane_rounds(int planes) { return (planes + kRoundPlanes - 1) / kRoundPlanes; }

// Of folded planes, the others and low ones, one after the other.
KVASIR_HOST_DEVICE constexpr int plane_rounds(const KeyTableLayout& layout) {
  return plane_rounds(layout.folded_planes) + plane_rounds(layout.slice_stages - layout.folded_planes) +
         plane_rounds(layout.low_planes);
}

// The blocks of 8 pairs that the kernel for such a head has.
KVASIR_HOST_DEVICE constexpr int plane_blocks(int head_dim) {
  const int blocks = (head_dim + 2 * kPlaneBlockPairs - 1) / (2 * kPlaneBlockPairs);
  return blocks >= 7 ? 8 : (blocks + 1) / 2 * 2;
}
// Odd tokens read block c ^ plane_swap() when even ones read block c. By 2 where blocks come in fours, as low planes
// need it.
KVASIR_HOST_DEVICE constexpr int plane_swap(int blocks) { return blocks % 4 == 0 ? 2 : 1; }
// Where plane p of a slice begins.
KVASIR_HOST_DEVICE constexpr int plane_offset(int p, int swap) {
  return p * kPlaneBytes - (swap == 2 ? p % 2 * (kPlaneGap / 2) : 0);
}
// And low plane p, from the end of the others on: two share rows of 128 bytes.
KVASIR_HOST_DEVICE constexpr int low_plane_offset(int p) { return p / 2 * kPlaneBytes + p % 2 * (kPlaneRowBytes / 2); }

// Shared memory of a warp: turns of 64 pairs as float16, and codes of 16 tokens for each plane, in two halves of which
// the first takes an odd number of rounds.
KVASIR_HOST_DEVICE constexpr int plane_warp_bytes(int rounds) {
  return 4 * kMaxSlicePairs + (rounds + (rounds | 1)) * kRoundPlanes * 16;
}
// That of a block: a slice, zeros for planes that fill up a round, turns of 8 tokens' keys as float16, turns by 8
// positions, and what each warp needs.
constexpr int kZeroBytes = 2 * kPlaneRowBytes;
constexpr int kTurnBytes = 4 * (kTileSize / 2) * kMaxSlicePairs + 8 * kMaxSlicePairs;
constexpr int plane_shared_bytes(const KeyTableLayout& layout) {
  return layout.slice_bytes() + kZeroBytes + kTurnBytes + kPlaneScoreWarps * plane_warp_bytes(plane_rounds(layout));
}

// What plans are made from, found once.
class TableSizes;

// How a model's tables are cut into planes.
class PlanePlan {
 public:
  // A stage's only plane, or one of its two.
  struct Plane {
    enum Part { kOnly, kHigh, kLow };
    int stage;
    Part part;
  };

  // Where rounds of four leave room, further stages get their second plane. `most`: planes that fit into a slice. low:
  // second planes are low ones. folded: what planes of bytes leave of rounds of four is folded, and no room is left.
  PlanePlan(const TableSizes& sizes, int most, bool low, bool folded);
  // The plan that a layout was made by.
  PlanePlan(const commvq::KeyModel& model, const KeyTableLayout& layout);

  const std::vector<Plane>& planes() const { return planes_; }          // of bytes
  const std::vector<Plane>& low_planes() const { return low_planes_; }  // of half bytes
  // What look-ups of a token cost, in planes of bytes.
  int cost() const {
    const int planes = static_cast<int>(planes_.size());
    return (folded_ ? planes : kRoundPlanes * plane_rounds(planes)) +
           kRoundPlanes / 2 * plane_rounds(static_cast<int>(low_planes_.size()));
  }
  double step(int kv_head, int pair) const { return steps_[static_cast<size_t>(kv_head) * pairs_ + pair]; }
  // A plane counts in 2^level steps.
  int level(int kv_head, const Plane& plane) const {
    if (plane.part != Plane::kOnly) return plane.part == Plane::kHigh ? high_level_ : 0;
    return levels_[static_cast<size_t>(kv_head) * stages_ + plane.stage];
  }
  // What keys lose of their variance, on average and in the worst pair.
  double loss() const { return loss_; }
  double worst_loss() const { return worst_loss_; }

 private:
  void add(int stage, bool two, bool low);
  bool plan_whole(const TableSizes& sizes);

  const int stages_, pairs_;
  const bool folded_;
  int high_level_ = kHighLevel;
  std::vector<Plane> planes_, low_planes_;
  std::vector<double> steps_;  // [kv_heads][pairs]
  std::vector<int> levels_;    // [kv_heads][stages]: of those with one plane
  double loss_ = 0.0, worst_loss_ = 0.0;
};

// What plan_key_tables and pack_key_tables do for KeyPrecision::kFast.
cudaError_t plan_plane_tables(const commvq::KeyModel& model, int most_shared, KeyTableLayout* layout);
void pack_plane_tables(const commvq::KeyModel& model, const KeyTableLayout& layout, const double* frequencies,
                       double magnitude, uint8_t* bytes);

}  // namespace kvasir::cuda
