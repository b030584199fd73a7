// Fast key tables of CommVQ: planes of bytes, summed up on tensor cores.
//
// Entries become whole numbers of a step that each RoPE pair of a kv head has for itself. A plane is one stage's table
// of 64 rows of signed bytes, and counts in 2^level steps, so that stages with small entries are as fine as they need
// to be and those with large ones have room:
//
//   one plane     entry = step * 2^level * byte
//   two planes    entry = step * (2^6 * high + low)
//
// What a look-up loses is step^2 / 12 in each component, 4^level times that in a plane of its own. Stages have two
// planes where one would lose too much: the fewest of them for which keys lose kPlaneTolerance of their variance, on
// average over pairs and no pair more than four times as much. Scores are then off by that part of their variance, and
// outputs by at most that times the variance of scores, about: 1e-4 for a variance of 4. Trained tables have two planes
// for three to nine of their stages, because their first stages have large entries; tables of uniform random numbers of
// equal size need none.
//
// A slice is as table_layout.h has it, of up to 64 pairs and some of the planes, with rows of 128 bytes:
//
//   double  turns[64], float step[64], float magnitude, as everywhere
//   uint8_t stage[32], level[32]     of each plane
//   rows    [planes][64]             pair after pair; 32 bytes are left free after each plane
//
// Planes of a round of four then begin in different banks of shared memory. Rows are read in blocks of 8 pairs, and odd
// tokens read block c ^ 1 where even ones read block c: eight lanes, of two tokens and four planes, meet in no bank.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/commvq/table_layout.h"
#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

constexpr double kPlaneTolerance = 2.5e-5;
constexpr int kPlaneRowBytes = 128;
constexpr int kPlaneBytes = kEntryStride * kPlaneRowBytes + kPlaneGap;
constexpr int kPlaneBlockPairs = 8;
constexpr int kHighLevel = 6;         // of the first of two planes
constexpr int kRoundPlanes = 4;       // planes that one step of the tensor cores takes
constexpr int kPlaneScoreWarps = 12;  // as many as have registers for 16 loads on their way

// Where a plane's stage and level stand in a slice.
constexpr int kPlaneStagesAt = 12 * kMaxSlicePairs + 4;
constexpr int kPlaneLevelsAt = kPlaneStagesAt + kMaxSliceStages;

KVASIR_HOST_DEVICE constexpr int plane_rounds(int planes) { return (planes + kRoundPlanes - 1) / kRoundPlanes; }

// Shared memory of a warp: turns of 64 pairs as float16, and codes of 16 tokens for each plane, in two halves of which
// the first takes an odd number of rounds.
KVASIR_HOST_DEVICE constexpr int plane_warp_bytes(int planes) {
  return 4 * kMaxSlicePairs + (plane_rounds(planes) + (plane_rounds(planes) | 1)) * kRoundPlanes * 16;
}
// That of a block: a slice, zeros for planes that fill up a round, turns of 8 tokens' keys as float16, turns by 8
// positions, and what each warp needs.
constexpr int kZeroBytes = 2 * kPlaneRowBytes;
constexpr int kTurnBytes = 4 * (kTileSize / 2) * kMaxSlicePairs + 8 * kMaxSlicePairs;
constexpr int plane_shared_bytes(const KeyTableLayout& layout) {
  return layout.slice_bytes() + kZeroBytes + kTurnBytes + kPlaneScoreWarps * plane_warp_bytes(layout.slice_stages);
}

// How a model's tables are cut into planes.
class PlanePlan {
 public:
  // A stage's only plane, or one of its two, which are of level kHighLevel and then 0.
  struct Plane {
    int stage, level;
    bool two;  // whether this is one of two
  };

  // Where the last four planes leave room, further stages get their second plane. `most`: planes that fit into a slice.
  PlanePlan(const commvq::KeyModel& model, int most);
  // The plan that a layout was made by.
  PlanePlan(const commvq::KeyModel& model, const KeyTableLayout& layout)
      : PlanePlan(model, layout.stage_slices == 1 ? layout.planes : 0) {}

  const std::vector<Plane>& planes() const { return planes_; }
  double step(int kv_head, int pair) const { return steps_[static_cast<size_t>(kv_head) * pairs_ + pair]; }
  // What keys lose of their variance, on average and in the worst pair.
  double loss() const { return loss_; }
  double worst_loss() const { return worst_loss_; }

 private:
  int pairs_;
  std::vector<Plane> planes_;
  std::vector<double> steps_;  // [kv_heads][pairs]
  double loss_, worst_loss_;
};

// What plan_key_tables and pack_key_tables do for KeyPrecision::kFast.
cudaError_t plan_plane_tables(const commvq::KeyModel& model, int most_shared, KeyTableLayout* layout);
void pack_plane_tables(const commvq::KeyModel& model, const KeyTableLayout& layout, const double* frequencies,
                       double magnitude, uint8_t* bytes);

}  // namespace kvasir::cuda
