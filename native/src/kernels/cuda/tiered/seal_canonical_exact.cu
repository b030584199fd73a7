// Writes tiered keys as docs/format.md has them, once their tiers are chosen: for pages that no fused kernel reads. A
// block takes one kv head of a page, a thread a 32-bit word of a plane. Compiled without contraction (CMakeLists.txt).
#include <cuda_fp16.h>

#include "codecs/tiered/parameters.h"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/pages/quantise.cuh"
#include "kernels/cuda/tiered/seal.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads >= kMaxHeadDim, "a thread for each channel");

struct Params {
  PageFormat format;
  int parts;
  int table_bytes;
  const uint16_t* rows;     // of kv head 0
  int64_t head_elements;    // from one kv head's rows to the next one's
  const uint32_t* offsets;  // [pages of the launch][parts + 1]
  TierChoices choices;      // of the first page of the launch
};

struct Shared {
  uint8_t channels[kMaxHeadDim];
};

__device__ __forceinline__ void store16(uint8_t* to, uint16_t value) { *reinterpret_cast<uint16_t*>(to) = value; }

// Counts, channels, parameters, zeros up to the values, and those.
__device__ __forceinline__ void write_head(const tiered::Layout& layout, const uint32_t* parameters,
                                           const uint16_t* rows, const Shared& shared, uint8_t* part) {
  const int d = layout.head_dim, thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    store16(part, static_cast<uint16_t>(layout.n16));
    store16(part + 2, static_cast<uint16_t>(layout.n4));
  }
  if (thread < d) part[tiered::kCountBytes + thread] = shared.channels[thread];
  for (int i = thread; i < layout.groups * layout.columns; i += kThreads) {
    const int group = i / layout.columns, column = i % layout.columns, place = layout.place_of(column);
    const uint32_t word = place < 0 ? 0 : parameters[group * layout.group / 32 * d + shared.channels[place]];
    tiered::store_parameters(layout, group, column, {static_cast<uint16_t>(word >> 16), static_cast<uint16_t>(word)},
                             part);
  }
  for (size_t i = layout.parameters_end() + 2 * thread; i < layout.values_offset; i += 2 * kThreads)
    store16(part + i, 0);
  for (int i = thread; i < layout.n16 * kPageTokens; i += kThreads) {
    const int channel = shared.channels[i / kPageTokens], token = i % kPageTokens;
    store16(part + layout.values_offset + 2 * i, rows[static_cast<int64_t>(token) * d + channel]);
  }
}

// `first`: of the plane's columns among all.
__device__ __forceinline__ void write_plane(const tiered::Layout& layout, const tiered::Plane& plane, int first,
                                            const uint32_t* parameters, const uint16_t* rows, const Shared& shared,
                                            uint8_t* out) {
  const uniform::Codes codes = uniform::codes_of(plane.bits, layout.grid_of(first));
  const int d = layout.head_dim, vectors = plane.columns / tiered::kColumnsPerVector;
  for (int i = threadIdx.x; i < static_cast<int>(plane.bytes() / 4); i += kThreads) {
    const int lane = i % 16, vector = i / 16;
    const int column = first + vector % vectors * tiered::kColumnsPerVector;
    const int token = vector / vectors * plane.tokens_per_vector() + lane;
    uint32_t word = 0;
    for (int j = 0; j < tiered::kColumnsPerVector; ++j) {
      const int place = layout.place_of(column + j);
      if (place < 0) continue;
      const int channel = shared.channels[place];
      for (int p = 0; p < 8 / plane.bits; ++p) {
        const int at = token + 16 * p;
        const uint32_t stored = parameters[at / layout.group * layout.group / 32 * d + channel];
        const Quantiser quantiser =
            quantiser_of({static_cast<uint16_t>(stored >> 16), static_cast<uint16_t>(stored)}, codes);
        const float x = __half2float(__ushort_as_half(rows[static_cast<int64_t>(at) * d + channel]));
        const uint32_t code = clipped_uniform_code(x, quantiser.lo, quantiser.inverse, codes.cells, codes.last);
        word |= (code & static_cast<uint32_t>(codes.last)) << (8 * j + plane.bits * p);
      }
    }
    reinterpret_cast<uint32_t*>(out)[i] = word;
  }
}

__global__ void __launch_bounds__(kThreads)
    seal_parts(const __grid_constant__ PageList<uint8_t> pages, const __grid_constant__ Params params) {
  __shared__ Shared shared;
  const int d = params.format.head_dim, head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int64_t index = static_cast<int64_t>(blockIdx.x) * gridDim.y + head;
  const uint32_t* const offsets = params.offsets + static_cast<int64_t>(blockIdx.x) * (params.parts + 1);
  uint8_t* const page = pages.pages[blockIdx.x];
  for (int i = thread; head == 0 && i < params.table_bytes / 4; i += kThreads) {
    reinterpret_cast<uint32_t*>(page)[i] = i <= params.parts ? offsets[i] : 0;
  }
  if (thread < d) shared.channels[thread] = params.choices.channels[index * d + thread];
  __syncthreads();
  const TierCounts counts = params.choices.counts[index];
  const tiered::Layout layout = tiered::layout_of(params.format, counts.n16, counts.n4);
  const uint32_t* const parameters = params.choices.parameters + index * kTokenSpans * d;
  const uint16_t* const rows =
      params.rows + head * params.head_elements + static_cast<int64_t>(blockIdx.x) * kPageTokens * d;
  uint8_t* const part = page + offsets[head];
  write_head(layout, parameters, rows, shared, part);
  write_plane(layout, layout.wide, 0, parameters, rows, shared, part + layout.wide_offset);
  write_plane(layout, layout.narrow, layout.wide.columns, parameters, rows, shared, part + layout.narrow_offset);
}

}  // namespace

cudaError_t seal_tiered_parts(const TieredSealRequest& request, const TierChoices& choices, const PageTable& table,
                              uint8_t* const* pages, cudaStream_t stream) {
  const int d = request.shape.head_dim;
  const int64_t page_elements = int64_t{kPageTokens} * d, page_parts = request.shape.kv_heads;
  const auto launch = [&](const PageList<uint8_t>& list, int count, int64_t first) {
    Params params = {};
    params.format = request.keys;
    params.parts = table.parts;
    params.table_bytes = table.bytes;
    params.rows = request.staging.sides[0] + first * page_elements;
    params.head_elements = request.staging.rows * d;
    params.offsets = table.offsets + first * (table.parts + 1);
    params.choices.counts = choices.counts + first * page_parts;
    params.choices.parameters = choices.parameters + first * page_parts * kTokenSpans * d;
    params.choices.channels = choices.channels + first * page_parts * d;
    seal_parts<<<dim3(count, request.shape.kv_heads), kThreads, 0, stream>>>(list, params);
    return cudaGetLastError();
  };
  return for_page_lists(pages, request.page_count, launch);
}

}  // namespace kvasir::cuda
