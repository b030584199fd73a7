// Writes pages of tiered keys and uniform values once their tiers are chosen. A block takes one side of one kv head of
// a page: rows to shared memory, then chunks of layout.h, a warp at a time. A lane makes the words that it
// would read in attention, so that no two threads share a byte. Compiled without contraction (CMakeLists.txt).
#include <cuda_fp16.h>

#include "codecs/tiered/format.h"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/pages/quantise.cuh"
#include "kernels/cuda/tiered/seal.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kOctet = 8;  // elements of a 16-byte load
constexpr int kMaxKeyChunks = 2 * kMaxHeadDim / kColumnsPerChunk + 1;
constexpr int kMaxValueGroups = kMaxHeadDim / 32;

struct Params {
  const uint16_t* rows[2];  // of kv head 0, by side
  int64_t head_elements;    // from one kv head's rows to the next one's
  int kv_heads;
  TieredFormat format;
  TierChoices choices;  // of the first page of the launch
};

struct Scale {
  float lo, inverse;
};

struct Shared {
  Scale scales[kMaxValueGroups * kPageTokens];  // keys: [kTokenSpans][channel], values: [group][token]
  uint32_t words[kTokenSpans * kMaxHeadDim];    // of keys, as stored: range, and above it lo
  uint16_t columns[kMaxKeyChunks * kColumnsPerChunk];
  uint8_t channels[kMaxHeadDim];
};
static_assert(kTokenSpans * kMaxHeadDim <= kMaxValueGroups * kPageTokens, "scales of keys have room");

// Rows are padded so that threads of different rows meet different banks.
KVASIR_HOST_DEVICE constexpr int row_stride(int d) { return d + kOctet; }
// Shared memory for the rows of a page.
constexpr int row_bytes(int d) { return kPageTokens * row_stride(d) * static_cast<int>(sizeof(uint16_t)); }

__device__ __forceinline__ float element(const uint16_t* rows, int stride, int token, int channel) {
  return __half2float(__ushort_as_half(rows[token * stride + channel]));
}

__device__ __forceinline__ void load_rows(const uint16_t* from, int d, uint16_t* rows) {
  const int octets = d / kOctet;
  for (int i = threadIdx.x; i < kPageTokens * octets; i += kThreads) {
    const int token = i / octets, octet = i % octets;
    *reinterpret_cast<uint4*>(rows + token * row_stride(d) + octet * kOctet) =
        __ldg(reinterpret_cast<const uint4*>(from) + i);
  }
}

// Which channels chunk k of the keys has, and their parameters. A warp.
__device__ __forceinline__ void describe_chunk(const TieredBlock& layout, int k, int lane, uint8_t* block,
                                               const Shared& shared) {
  const int d = layout.format.head_dim;
  const uint16_t* const columns = shared.columns + k * kColumnsPerChunk;
  const int own = columns[lane] & 255, own_kind = columns[lane] >> 8;
  if (!layout.is_wide(k)) {
    *reinterpret_cast<uint16_t*>(block + layout.column_byte(k, lane)) = columns[lane];
  } else if (lane < kWideChannels) {
    block[layout.column_byte(k, lane)] = static_cast<uint8_t>(own);
  }
  for (int g = 0; g < layout.format.key_groups(); ++g) {
    if (layout.is_wide(k) && lane >= kWideChannels) break;
    const uint32_t word = shared.words[g * layout.format.key_group / 32 * d + own];
    *reinterpret_cast<uint32_t*>(block + layout.parameter_byte(k, lane, g)) = own_kind == kPadding    ? 0
                                                                              : own_kind == kHighBits ? word & 0xffffu
                                                                                                      : word;
  }
}

// The codes of chunk k of the keys. A warp.
__device__ __forceinline__ void pack_chunk(const TieredBlock& layout, int k, int lane, const uint16_t* rows,
                                           uint8_t* block, const Shared& shared) {
  const int d = layout.format.head_dim;
  const uint16_t* const columns = shared.columns + k * kColumnsPerChunk;
  // The lane's columns of code_place, and tokens lane / 4 and every eighth from there on.
  int channel[8], kind[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = columns[2 * (lane % 4) + i % 2 + i / 2 * 8];
    channel[i] = column & 255;
    kind[i] = column >> 8;
  }
#pragma unroll 1
  for (int g = 0; g < kTokenSpans; ++g) {
    uint32_t codes[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (kind[i] == kPadding) continue;
      const Scale scale = shared.scales[g * d + channel[i]];
      const int shift = kind[i] == kHighBits ? 2 : 0;
      const bool cells = kind[i] == kTwoBits && layout.format.key_grid == Grid::kCells;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float x = element(rows, row_stride(d), 32 * g + 8 * j + lane / 4, channel[i]);
        const uint32_t code = uniform_code(x, scale.lo, scale.inverse, cells, 3) >> shift & 3;
        codes[j / 2] |= code << (8 * (2 * (i % 2) + i / 2 % 2) + 4 * (i / 4) + 2 * (j % 2));
      }
    }
    *reinterpret_cast<uint2*>(block + layout.codes_offset(k) + g * kSpanCodeBytes + 8 * lane) =
        make_uint2(codes[0], codes[1]);
  }
}

// The 16-bit tier, and zeros up to the end of the block.
__device__ __forceinline__ void store_wide_tier(const TieredBlock& layout, const uint16_t* rows, uint8_t* block,
                                                const Shared& shared) {
  const int d = layout.format.head_dim, n16 = layout.n16, thread = static_cast<int>(threadIdx.x);
  uint8_t* const channels = block + layout.channels_offset();
  for (int i = thread; i < layout.elements_offset() - layout.channels_offset(); i += kThreads) {
    channels[i] = i < n16 ? shared.channels[i] : 0;
  }
  auto* const elements = reinterpret_cast<uint32_t*>(block + layout.elements_offset());
  for (int i = thread; i < n16 * kPageTokens / 2; i += kThreads) {
    const int pair = i % 8, row = i / 8 % 8;  // tokens row + 16 pair and 8 on
    const int channel = shared.channels[i / 64], token = row + 16 * pair;
    elements[i] = rows[token * row_stride(d) + channel] | uint32_t{rows[(token + 8) * row_stride(d) + channel]} << 16;
  }
  const int end = layout.elements_offset() + 256 * n16;
  for (int i = thread; i < (layout.bytes() - end) / 4; i += kThreads) {
    reinterpret_cast<uint32_t*>(block + end)[i] = 0;
  }
}

// Everything of the block but the value chunks.
__device__ __forceinline__ void seal_keys(const Params& params, int64_t part, const TieredBlock& layout,
                                          const uint16_t* rows, uint8_t* block, Shared& shared) {
  const int d = layout.format.head_dim, n16 = layout.n16, n4 = layout.n4;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (thread < d) shared.channels[thread] = params.choices.channels[part * d + thread];
  __syncthreads();
  for (int i = thread; i < layout.key_chunks() * kColumnsPerChunk; i += kThreads) {
    const TieredColumn column = layout.column(i / kColumnsPerChunk, i % kColumnsPerChunk);
    const int channel = column.kind == kPadding ? 0 : shared.channels[column.place];
    shared.columns[i] = static_cast<uint16_t>(channel + 256 * column.kind);
  }
  for (int i = thread; i < kTokenSpans * (d - n16); i += kThreads) {
    const int group = i / (d - n16), place = n16 + i % (d - n16);
    const int at = group * d + shared.channels[place];
    const uint32_t word = params.choices.parameters[part * kTokenSpans * d + at];
    const uniform::Parameters stored = {static_cast<uint16_t>(word >> 16), static_cast<uint16_t>(word)};
    const Quantiser quantiser = quantiser_of(
        stored, place < n16 + n4 ? uniform::codes_of(4, Grid::kEnds) : uniform::codes_of(2, layout.format.key_grid));
    shared.words[at] = word;
    shared.scales[at] = {quantiser.lo, quantiser.inverse};
  }
  __syncthreads();

  if (thread < d) {
    const int channel = shared.channels[thread];
    uint32_t range = 0;  // not negative, so ordered like its bits
    for (int g = 0; thread >= n16 && g < kTokenSpans; ++g) range = max(range, shared.words[g * d + channel] & 0xffffu);
    block[channel] = half_range_bound(static_cast<int>(range));
  }
  for (int k = warp; k < layout.key_chunks(); k += kWarps) {
    describe_chunk(layout, k, lane, block, shared);
    pack_chunk(layout, k, lane, rows, block, shared);
  }
  store_wide_tier(layout, rows, block, shared);
}

template <int kBits>
__device__ __forceinline__ void pack_values(const TieredBlock& layout, const uint16_t* rows, uint8_t* block,
                                            const Shared& shared) {
  constexpr int kUnits = 4 / kBits;    // of 32 tokens in a group of 512 bytes
  constexpr int kGroups = 4 / kUnits;  // of a chunk
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int stride = row_stride(layout.format.head_dim);
  const bool cells = layout.format.value_grid == Grid::kCells;
  for (int item = warp; item < layout.format.value_chunks() * kGroups; item += kWarps) {
    const int v = item / kGroups, group = item % kGroups;
    const Scale* const scales = shared.scales + layout.value_group_of(v) * kPageTokens;
    uint32_t words[4] = {};
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int b = 0; b < 4; ++b) {  // bytes of a word: fragment_byte
          const int token = 32 * (group * kUnits + u) + 16 * (w / 2) + 2 * (lane % 4) + b / 2 + 8 * (b % 2);
          const Scale scale = scales[token];
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const int channel = 32 * v + 16 * odd + 8 * (w % 2) + lane / 4;
            const uint32_t code =
                uniform_code(element(rows, stride, token, channel), scale.lo, scale.inverse, cells, (1 << kBits) - 1);
            words[w] |= (code & ((1u << kBits) - 1)) << (8 * b + 4 * u + kBits * odd);
          }
        }
      }
    }
    auto* const groups = reinterpret_cast<uint4*>(block + layout.value_codes_offset(v) + group * kGroupBytes);
    groups[lane] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// The value groups.
__device__ __forceinline__ void seal_values(const TieredBlock& layout, const uint16_t* rows, uint8_t* block,
                                            Shared& shared) {
  const int d = layout.format.head_dim, thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < layout.format.value_groups() * kPageTokens; i += kThreads) {
    const int token = i % kPageTokens, group = i / kPageTokens, begin = group * layout.format.value_group;
    const int end = min(begin + layout.format.value_group, d);
    const auto* from = reinterpret_cast<const uint4*>(rows + token * row_stride(d));
    __half2 low = *reinterpret_cast<const __half2*>(from + begin / kOctet), high = low;
    for (int octet = begin / kOctet; octet < end / kOctet; ++octet) {
      const uint4 four = from[octet];
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const __half2 pair = *reinterpret_cast<const __half2*>(&words[j]);
        low = __hmin2(low, pair);
        high = __hmax2(high, pair);
      }
    }
    const uniform::Parameters stored = uniform::parameters_of(fminf(__low2float(low), __high2float(low)),
                                                              fmaxf(__low2float(high), __high2float(high)));
    const Quantiser quantiser =
        quantiser_of(stored, uniform::codes_of(layout.format.value_bits, layout.format.value_grid));
    shared.scales[i] = {quantiser.lo, quantiser.inverse};
    *reinterpret_cast<uint32_t*>(block + layout.value_parameters_offset(group) +
                                 layout.format.value_chunk().parameter_byte(token)) = stored.range | uint32_t{stored.lo}
                                                                                                         << 16;
  }
  __syncthreads();
  if (layout.format.value_bits == 2) {
    pack_values<2>(layout, rows, block, shared);
  } else {
    pack_values<4>(layout, rows, block, shared);
  }
}

__global__ void __launch_bounds__(kThreads)
    seal(const __grid_constant__ PageList<uint8_t> pages, const __grid_constant__ Params params) {
  extern __shared__ uint4 dynamic[];
  __shared__ Shared shared;
  auto* const rows = reinterpret_cast<uint16_t*>(dynamic);
  const int d = params.format.head_dim, head = static_cast<int>(blockIdx.y), side = static_cast<int>(blockIdx.z);
  uint8_t* const page = pages.pages[blockIdx.x];
  const TierCounts* const counts = params.choices.counts + static_cast<int64_t>(blockIdx.x) * params.kv_heads;
  load_rows(params.rows[side] + head * params.head_elements + static_cast<int64_t>(blockIdx.x) * kPageTokens * d, d,
            rows);

  const int table_bytes = tiered_table_bytes(params.kv_heads);
  uint32_t offset = static_cast<uint32_t>(table_bytes);
  for (int h = 0; h < head; ++h) {
    offset += static_cast<uint32_t>(tiered_block(params.format, counts[h].n16, counts[h].n4).bytes());
  }
  const TieredBlock block = tiered_block(params.format, counts[head].n16, counts[head].n4);
  if (side == 0 && threadIdx.x == 0) {
    reinterpret_cast<TieredPlace*>(page)[head] = {offset, counts[head].n16, counts[head].n4};
  }
  if (side == 0 && head == 0) {
    const int used = static_cast<int>(sizeof(TieredPlace)) * params.kv_heads;
    for (int i = threadIdx.x; i < (table_bytes - used) / 4; i += kThreads) {
      reinterpret_cast<uint32_t*>(page + used)[i] = 0;
    }
  }
  __syncthreads();
  if (side == 0) {
    const int64_t part = static_cast<int64_t>(blockIdx.x) * params.kv_heads + head;
    seal_keys(params, part, block, rows, page + offset, shared);
  } else {
    seal_values(block, rows, page + offset, shared);
  }
}

}  // namespace

cudaError_t seal_tiered_pages(const TieredSealRequest& request, const TierChoices& choices, uint8_t* const* pages,
                              cudaStream_t stream) {
  const int d = request.shape.head_dim;
  if (!tiered_supported(request.keys, request.values)) return cudaErrorInvalidValue;
  // All head dims share the kernel, so what it is allowed must not depend on this one's.
  const cudaError_t allowed =
      cudaFuncSetAttribute(seal, cudaFuncAttributeMaxDynamicSharedMemorySize, row_bytes(kMaxHeadDim));
  if (allowed != cudaSuccess) return allowed;
  const int64_t page_elements = int64_t{kPageTokens} * d, page_parts = request.shape.kv_heads;
  const auto launch = [&](const PageList<uint8_t>& list, int count, int64_t first) {
    Params params = {};
    for (int side = 0; side < 2; ++side) params.rows[side] = request.staging.sides[side] + first * page_elements;
    params.head_elements = request.staging.rows * d;
    params.kv_heads = request.shape.kv_heads;
    params.format = tiered_format(request.keys, request.values);
    params.choices.counts = choices.counts + first * page_parts;
    params.choices.parameters = choices.parameters + first * page_parts * kTokenSpans * d;
    params.choices.channels = choices.channels + first * page_parts * d;
    seal<<<dim3(count, request.shape.kv_heads, 2), kThreads, row_bytes(d), stream>>>(list, params);
    return cudaGetLastError();
  };
  return for_page_lists(pages, request.page_count, launch);
}

}  // namespace kvasir::cuda
