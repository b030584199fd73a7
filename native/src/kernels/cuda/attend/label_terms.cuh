// Products of queries with all key vectors, for segments that have more than LabelScratch has room for: a launch
// before that of attention. A warp takes a tile of 16 vectors.
#pragma once

#include "kernels/cuda/attend/labels.cuh"

namespace kvasir::cuda {

constexpr int kTermWarps = 4;

template <int D, int kTiles>
__global__ void __launch_bounds__(32 * kTermWarps) label_terms_kernel(const __grid_constant__ AttendParams params) {
  let_next_grid_start();
  wait_for_grids_before();
  const int tile = static_cast<int>(blockIdx.x * kTermWarps + threadIdx.x / 32), lane = threadIdx.x % 32;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const LabelSide keys = LabelSide::of(sequence_at(params, sequence).key_vectors, head / params.row_blocks);
  if (!keys.far() || keys.outgrew(params.room) || tile * kTileSize >= keys.count()) return;
  const int segment = sequence * static_cast<int>(gridDim.y) + head;
  float(*const terms)[4 * kTiles] = segment_terms<kTiles>(params.room, segment);
  if (tile == 0 && lane < 4 * kTiles) terms[0][lane] = 0.0f;
  VectorTile<D> vectors;
  vectors.load(keys.vectors, tile, lane);  // while queries are waited for
  Query<D, kTiles> query;
  load_query(params, segment, lane, query);
  tile_terms(vectors, lane, query, terms + 1 + tile * kTileSize);
}

}  // namespace kvasir::cuda
