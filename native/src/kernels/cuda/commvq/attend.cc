#include "kernels/cuda/commvq/attend.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/commvq/params.h"

namespace kvasir::cuda {
namespace {

constexpr int kMaxSequences = 4096;

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Parts of a sequence: as many as fill the device once, or a few times where that leaves fewer of its processors idle.
int splits_for(const CommVqPlan& plan, int count) {
  const int columns = plan.code_slices * plan.head_blocks * std::max(count, 1);
  int best = 1;
  double best_use = 0.0;
  for (int times = 1; times <= 4; ++times) {
    const int splits = std::clamp(times * plan.value_blocks / columns, 1, kMaxSplits);
    const int blocks = splits * columns, rounds = (blocks + plan.value_blocks - 1) / plan.value_blocks;
    const double use = static_cast<double>(blocks) / (static_cast<double>(rounds) * plan.value_blocks);
    if (use < best_use + 0.05) continue;
    best = splits;
    best_use = use;
  }
  return best;
}

}  // namespace

cudaError_t plan_commvq(const CommVqShape& shape, CommVqPlan* plan) {
  const KeyTableLayout& tables = shape.tables;
  if (tables.head_dim < 32 || tables.head_dim > 256 || tables.head_dim % 16 != 0) return cudaErrorInvalidValue;
  if (shape.group < 1 || tables.kv_heads < 1 || shape.codes < 16 || shape.codes % 16 != 0) return cudaErrorInvalidValue;
  if (shape.sequences < 1 || shape.sequences > kMaxSequences || shape.pages < 0) return cudaErrorInvalidValue;
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;

  CommVqPlan made = {};
  made.shape = shape;
  made.row_blocks = (shape.group + 3) / 4;
  made.score_blocks = processors;
  made.score_shared = score_shared_bytes(tables);
  error = prepare_scores(tables, made.score_shared);
  if (error != cudaSuccess) return error;
  const int query_heads = tables.kv_heads * shape.group;
  made.code_slices = (shape.codes + kBlockCodes - 1) / kBlockCodes;
  made.head_blocks = (query_heads + kBlockHeads - 1) / kBlockHeads;
  made.value_blocks = processors;
  error = prepare_values(shape.generic, &made.hopper, &made.overlaps);
  if (error != cudaSuccess) return error;

  // Parts of all sequences together, for any number of them: each has its splits, rounded up.
  int parts = 0;
  for (int count = 1; count <= shape.sequences; ++count) parts = std::max(parts, count * splits_for(made, count));
  const size_t groups = static_cast<size_t>(shape.sequences) * tables.kv_heads * made.row_blocks;
  const size_t tile_floats = static_cast<size_t>(query_heads) * kTileSize;
  size_t at = aligned(groups * sizeof(uint32_t));
  const auto take = [&](size_t count, size_t size) {
    const size_t offset = at;
    at += aligned(count * size);
    return offset;
  };
  made.scores_offset = take(score_slices(tables) * static_cast<size_t>(shape.pages) * kTilesPerPage * tile_floats, 4);
  made.states_offset = take(static_cast<size_t>(parts) * query_heads, sizeof(float2));
  made.sums_offset = take(static_cast<size_t>(parts) * query_heads * shape.codes, sizeof(float));
  made.rows_offset = take(groups * row_state_floats(tables.head_dim), sizeof(float));
  const size_t shares = groups * merge_slices(shape.codes, kMergeCodes);
  made.shares_offset =
      take(std::max(shares, static_cast<size_t>(made.value_blocks)) * 4 * tables.head_dim, sizeof(float));
  made.workspace_bytes = at;
  *plan = made;
  return cudaSuccess;
}

cudaError_t clear_workspace(const CommVqPlan& plan, void* workspace, cudaStream_t stream) {
  return cudaMemsetAsync(workspace, 0, counter_bytes(plan), stream);
}

CommVqParams params_of(const CommVqPlan& plan, const CommVqRequest& request) {
  uint8_t* const workspace = static_cast<uint8_t*>(request.workspace);
  CommVqParams params = {};
  params.sequences = request.sequences;
  params.queries = request.queries;
  params.outputs = request.outputs;
  params.key_tables = request.key_tables;
  params.value_tables = request.value_tables;
  params.tables = plan.shape.tables;
  params.arrivals = reinterpret_cast<uint32_t*>(workspace);
  params.scores = reinterpret_cast<float*>(workspace + plan.scores_offset);
  params.states = reinterpret_cast<float2*>(workspace + plan.states_offset);
  params.sums = reinterpret_cast<float*>(workspace + plan.sums_offset);
  params.row_states = reinterpret_cast<float*>(workspace + plan.rows_offset);
  params.shares = reinterpret_cast<float*>(workspace + plan.shares_offset);
  params.tiles = plan.shape.pages * kTilesPerPage;
  params.count = request.count;
  params.group = plan.shape.group;
  params.row_blocks = plan.row_blocks;
  params.codes = plan.shape.codes;
  params.score_slices = score_slices(params.tables);
  params.code_slices = plan.code_slices;
  params.head_blocks = plan.head_blocks;
  params.splits = splits_for(plan, request.count);
  params.hopper = plan.hopper;
  params.overlaps = plan.overlaps;
  const auto few = [&](int codes) {
    const int merges = merge_slices(params.codes, codes) * params.tables.kv_heads * params.row_blocks;
    return int64_t{merges} * params.count <= plan.value_blocks;
  };
  params.merge_codes = params.splits <= kFewMergeSplits && few(kFewMergeCodes) ? kFewMergeCodes : kMergeCodes;
  params.few_merges = few(params.merge_codes);
  params.neighbours = plan.shape.pairs == RopePairs::kNeighbours;
  params.ends = request.ends;
  params.type = request.type;
  params.scale = request.softmax_scale * static_cast<float>(M_LOG2E);
  params.cap = request.soft_cap * static_cast<float>(M_LOG2E);
  return params;
}

cudaError_t launch_commvq(const CommVqPlan& plan, const CommVqRequest& request, cudaStream_t stream) {
  if (request.count < 0 || request.count > plan.shape.sequences) return cudaErrorInvalidValue;
  if (request.count == 0) return cudaSuccess;
  const CommVqParams params = params_of(plan, request);
  cudaError_t error = launch_scores(params, plan.score_blocks, plan.score_shared, stream);
  if (error == cudaSuccess) error = launch_values(params, stream);
  if (error == cudaSuccess) error = launch_merge(params, stream);
  return error;
}

}  // namespace kvasir::cuda
