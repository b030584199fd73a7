// The line of all tiles of 16 tokens of a batch, along which warps work.
#pragma once

#include "kernels/cuda/commvq/common.cuh"
#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/uniform.cuh"

namespace kvasir::cuda {

// Where a warp stands in the line of all tiles: sequence by sequence, page by page.
struct TileCursor {
  const CommVqParams& params;
  int sequence;
  int page;
  int tile;  // of the page
  int page_count;
  const uint8_t* data;  // the page

  // A whole warp. Nowhere where `first` is negative.
  __device__ TileCursor(const CommVqParams& p, int64_t first, int lane)
      : params(p), sequence(0), page(0), tile(0), page_count(0), data(nullptr) {
    if (first < 0) return;
    int64_t rest = first / kTilesPerPage;
    tile = static_cast<int>(first % kTilesPerPage);
    for (int base = 0;; base += 32) {
      // Both are on their way together.
      const int count = base + lane < p.count ? p.sequences[base + lane].page_count : 0;
      const uint8_t* const* pages = base + lane < p.count ? p.sequences[base + lane].pages : nullptr;
      int before = count;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, step);
        if (lane >= step) before += other;
      }
      const uint32_t beyond = __ballot_sync(0xffffffffu, before > rest);
      if (beyond != 0) {
        const int found = __ffs(beyond) - 1;
        sequence = base + found;
        page_count = __shfl_sync(0xffffffffu, count, found);
        page = static_cast<int>(rest) - (__shfl_sync(0xffffffffu, before, found) - page_count);
        const auto address = __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(pages), found);
        data = reinterpret_cast<const uint8_t* const*>(address)[page];
        break;
      }
      rest -= __shfl_sync(0xffffffffu, before, 31);
    }
    sequence = uniform(sequence);
    page = uniform(page);
    page_count = uniform(page_count);
    data = uniform(data);
  }

  __device__ __forceinline__ void advance() {
    if (++tile < kTilesPerPage) return;
    tile = 0;
    if (++page == page_count) {
      page = 0;
      do page_count = uniform(params.sequences[++sequence].page_count);
      while (page_count == 0);
    }
    data = uniform(params.sequences[sequence].pages[page]);
  }
};

// A piece of a task that is one warp's.
struct WarpTask {
  int kv_head;
  int row_block;        // of its query heads
  int part;             // slice of its tables, [pair slice][stage or plane slice]
  int64_t first, last;  // tiles
};

// What it costs a block to go on with another slice, in tiles: its warps wait for each other and for the tables.
constexpr int kTableTiles = 30;

// A task is a slice of a kv head, a block of its query heads, and a piece of the line of all tiles. Blocks take equal
// shares of all lines, one after the other, so that some have the end of one and the beginning of the next. Tables of a
// task come to `shared`; then ready() makes what else a block needs of them. compute(task, cursor) is called by warps
// that have tiles: those of range 0 .. ranges - 1 of the piece.
template <class Ready, class Compute>
__device__ __forceinline__ void for_each_task(const CommVqParams& params, uint8_t* shared, int range, int ranges,
                                              int lane, const Ready& ready, const Compute& compute) {
  const KeyTableLayout& tables = params.tables;
  const int lines = tables.kv_heads * tables.slices() * params.row_blocks;
  // The lines that this block has a share of do not depend on how long they are.
  const int blocks = gridDim.x, begin = blockIdx.x * lines, end = begin + lines;  // in shares of a line
  int loaded = -1;
#pragma unroll 1
  for (int line = begin / blocks; line * blocks < end; ++line) {
    const int slice = line / params.row_blocks;
    if (slice != loaded) {
      __syncthreads();  // the tables before are not needed any more
      const uint8_t* from = params.key_tables + static_cast<size_t>(slice) * tables.slice_bytes();
      for (int i = threadIdx.x * 16; i < tables.slice_bytes(); i += blockDim.x * 16) {
        copy16(shared_address(shared + i), from + i);
      }
    }
    // Tables are there since long; all else may be the work of the grids before.
    wait_for_grids_before();
    let_next_grid_start();
    const int64_t tiles = uniform(pages_before(params, params.count, lane)) * kTilesPerPage;
    const auto tile_at = [&](int share) {
      return max(share * (tiles + kTableTiles) / blocks - kTableTiles, int64_t{0});
    };
    const int64_t from = tile_at(max(begin - line * blocks, 0)), to = tile_at(min(end - line * blocks, blocks));
    // While tables come, each warp finds its place.
    const int64_t first = from + (to - from) * range / ranges, last = from + (to - from) * (range + 1) / ranges;
    TileCursor cursor(params, first == last ? -1 : first, lane);
    if (slice != loaded) {
      wait_all_copies();
      __syncthreads();
      ready();
      __syncthreads();
      loaded = slice;
    }
    if (first == last) continue;
    compute(WarpTask{slice / tables.slices(), line % params.row_blocks, slice % tables.slices(), first, last}, cursor);
  }
}

}  // namespace kvasir::cuda
