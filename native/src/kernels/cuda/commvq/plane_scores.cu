// The kernel of fast scores: what PlaneScoreWarp computes goes to global memory.
#include "kernels/cuda/commvq/plane_scores.cuh"
#include "kernels/cuda/commvq/tiles.cuh"
#include "kernels/cuda/primitives/overlapping_launch.h"

namespace kvasir::cuda {
namespace {

// Where scores of a tile and of a block of four query heads go: [tiles][query heads][16].
struct ScoreArray {
  float* to;  // of the first of the four heads
  int heads;  // of the four that there are

  __device__ __forceinline__ void operator()(int token, int head, float2 scores) const {
    float* const at = to + head * kTileSize + score_place(token);
    if (head < heads) at[0] = scores.x;
    if (head + 1 < heads) at[kTileSize] = scores.y;
  }
};

template <int kBlocks, int kFolded>
__global__ void __launch_bounds__(32 * kPlaneScoreWarps, 1)
    plane_score_kernel(const __grid_constant__ CommVqParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const KeyTableLayout& tables = params.tables;
  uint8_t* const zeros = shared + tables.slice_bytes();
  auto& turns = *reinterpret_cast<PlaneTurns*>(zeros + kZeroBytes);
  uint8_t* const scratch = zeros + kZeroBytes + kTurnBytes + warp * plane_warp_bytes(plane_rounds(tables));
  if (threadIdx.x < kZeroBytes / 4) reinterpret_cast<uint32_t*>(zeros)[threadIdx.x] = 0;
  const auto ready = [&] { PlaneScoreWarp<kBlocks, kFolded>::make_turns(shared, turns); };
  const auto compute = [&](const WarpTask& task, TileCursor& cursor) {
    PlaneScoreWarp<kBlocks, kFolded> scores(params, shared, zeros, turns, scratch, task.kv_head, task.row_block,
                                            task.part / tables.stage_slices,
                                            tables.stages_of(task.part % tables.stage_slices), lane);
    const int64_t stride = static_cast<int64_t>(params.query_heads()) * kTileSize;
    ScoreArray sink = {params.scores + (task.part * params.tiles + task.first) * stride +
                           static_cast<int64_t>(task.kv_head * params.group + task.row_block * 4) * kTileSize,
                       params.group - task.row_block * 4};
    int known = -1;  // the sequence whose queries are in place
    scores.fetch({cursor.data, cursor.page, cursor.tile});
    for (int64_t tile = task.first; tile < task.last; ++tile, sink.to += stride) {
      if (cursor.sequence != known) {
        known = cursor.sequence;
        scores.enter(known);
      }
      const TilePlace place = {cursor.data, cursor.page, cursor.tile};
      if (tile + 1 < task.last) cursor.advance();
      scores.tile(place, {tile + 1 < task.last ? cursor.data : nullptr, cursor.page, cursor.tile}, sink);
    }
  };
  for_each_task(params, shared, warp, kPlaneScoreWarps, lane, ready, compute);
}

template <int kBlocks>
Kernel<CommVqParams> kernel_for(int folded) {
  return folded == 0   ? plane_score_kernel<kBlocks, 0>
         : folded == 1 ? plane_score_kernel<kBlocks, 1>
                       : plane_score_kernel<kBlocks, 2>;
}

Kernel<CommVqParams> kernel_of(const KeyTableLayout& layout) {
  const int blocks = plane_blocks(layout.head_dim), folded = layout.folded_planes;
  return blocks <= 2   ? kernel_for<2>(folded)
         : blocks <= 4 ? kernel_for<4>(folded)
         : blocks <= 6 ? kernel_for<6>(folded)
                       : kernel_for<8>(folded);
}

}  // namespace

cudaError_t prepare_plane_scores(const KeyTableLayout& layout, int shared_bytes) {
  return allow_shared_memory(kernel_of(layout), shared_bytes);
}

cudaError_t launch_plane_scores(const CommVqParams& params, int blocks, int shared_bytes, cudaStream_t stream) {
  return launch_kernel(kernel_of(params.tables), {dim3(blocks), 32 * kPlaneScoreWarps, shared_bytes, params.overlaps},
                       params, stream);
}

}  // namespace kvasir::cuda
