// Writes pages of tiered keys and uniform values once their tiers are chosen. A block takes one side of one kv head of
// a page: rows to shared memory, then bands and parts of layout.h, a warp at a time. A lane makes the words that it
// would read in attention, so that no two threads share a byte. Compiled without contraction (CMakeLists.txt).
#include <cuda_fp16.h>

#include "codecs/tiered/format.h"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/pages/quantise.cuh"
#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/tiered/seal.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kOctet = 8;  // elements of a 16-byte load
constexpr int kMaxPairs = kMaxHeadDim;
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
  Scale scales[kMaxValueGroups * kPageTokens];                 // keys: [kTokenSpans][channel], values: [group][token]
  uint32_t words[kMaxValueGroups * kPageTokens];               // as scales: range, and above it lo, as stored
  uint16_t columns[2 * kMaxPairs];                             // of each pair: channel + 256 * kind
  uint32_t greatest[kMaxValueGroups], least[kMaxValueGroups];  // ranges of a group of values
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

// Which channels a band has, and their ranges. A warp.
__device__ __forceinline__ void describe_band(const TieredBlock& layout, int band, int lane, uint8_t* block,
                                              const Shared& shared) {
  const TieredFormat& format = layout.format;
  const int d = format.head_dim, pairs = layout.band_pairs(band), groups = format.key_groups();
  const uint16_t* const columns = shared.columns + 2 * kBandPairs * band;
  auto* const words = reinterpret_cast<uint32_t*>(block + layout.band_offset(band));
  const auto row = [&](uint16_t column) {
    const bool any = column >> 8 != kPadding;
    return any ? static_cast<uint32_t>(stored_row(d, column >> 8, column & 255)) : 0;
  };
  const int column_words = format.band_column_bytes(pairs) / 4;
  if (lane < column_words) {
    words[lane] = lane < pairs ? row(columns[2 * lane]) | row(columns[2 * lane + 1]) << 16 : 0;
  }
  const auto range = [&](uint16_t column, int group) {
    return column >> 8 == kPadding ? 0 : shared.words[group * format.key_group / 32 * d + (column & 255)] & 0xffffu;
  };
  const int range_words = format.band_head_bytes(pairs) / 4 - column_words;
  if (lane < range_words) {
    const int pair = lane / groups, group = lane % groups;
    words[column_words + lane] =
        pair < pairs ? range(columns[2 * pair], group) | range(columns[2 * pair + 1], group) << 16 : 0;
  }
}

// The codes of a band. A warp.
__device__ __forceinline__ void pack_band(const TieredBlock& layout, int band, int lane, const uint16_t* rows,
                                          uint8_t* block, const Shared& shared) {
  const int d = layout.format.head_dim, half = layout.band_pairs(band) / 2, g = lane / 4, h = lane % 4;
  if (h >= half) return;
  const uint16_t* const columns = shared.columns + 2 * kBandPairs * band + 4 * h;
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // bytes of a word
    const int channel = columns[i] & 255, kind = columns[i] >> 8;
    if (kind == kPadding) continue;
    const int shift = kind == kHighBits ? 2 : 0;
    const bool cells = kind == kTwoBits && layout.format.key_grid == Grid::kCells;
#pragma unroll
    for (int j = 0; j < kPageTokens / 8; ++j) {
      const Scale scale = shared.scales[j / 4 * d + channel];
      const float x = element(rows, row_stride(d), 8 * j + g, channel);
      const uint32_t code = uniform_code(x, scale.lo, scale.inverse, cells, 3) >> shift & 3;
      words[j / 8 * 2 + j % 2] |= code << (8 * i + j / 2 % 4 * 2);
    }
  }
  reinterpret_cast<uint4*>(block + layout.codes_offset(band))[half * g + h] =
      make_uint4(words[0], words[1], words[2], words[3]);
}

// The 16-bit tier.
__device__ __forceinline__ void store_wide_tier(const TieredBlock& layout, const uint16_t* rows, uint8_t* block,
                                                const Shared& shared) {
  const int d = layout.format.head_dim, n16 = layout.n16, thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < (n16 + kWideBlock - 1) / kWideBlock * kWideBlock; i += kThreads) {
    *reinterpret_cast<uint16_t*>(block + layout.wide_row_byte(i)) =
        i < n16 ? static_cast<uint16_t>(query_halves(shared.channels[i])) : 0;
  }
  for (int i = thread; i < n16 * kPageTokens; i += kThreads) {
    const int token = i % kPageTokens, place = i / kPageTokens;
    *reinterpret_cast<uint16_t*>(block + layout.wide_element_byte(place, token)) =
        rows[token * row_stride(d) + shared.channels[place]];
  }
}

// Everything of the block but the values.
__device__ __forceinline__ void seal_keys(const Params& params, int64_t part, const TieredBlock& layout,
                                          const uint16_t* rows, uint8_t* block, Shared& shared) {
  const int d = layout.format.head_dim, n16 = layout.n16, n4 = layout.n4;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (thread < d) shared.channels[thread] = params.choices.channels[part * d + thread];
  for (int i = thread; i < kTokenSpans * d; i += kThreads) shared.words[i] = 0;  // those of the 16-bit tier stay
  __syncthreads();
  for (int i = thread; i < 2 * layout.pairs(); i += kThreads) {
    const TieredColumn column = layout.column(i / 2, i % 2);
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
  for (int i = thread; i < layout.format.key_groups() * d / 2; i += kThreads) {
    const int group = i / (d / 2), channel = i % (d / 2) * 2;
    const uint32_t* const two = shared.words + group * layout.format.key_group / 32 * d + channel;
    *reinterpret_cast<uint32_t*>(block + layout.lo_byte(channel, group)) = two[0] >> 16 | (two[1] & 0xffff0000u);
  }
  for (int band = warp; band < layout.bands(); band += kWarps) {
    describe_band(layout, band, lane, block, shared);
    pack_band(layout, band, lane, rows, block, shared);
  }
  store_wide_tier(layout, rows, block, shared);
}

// The codes of values. kTiles: of a byte, which has those of two steps where it has two tiles of 2 bits.
template <int kBits, int kTiles>
__device__ __forceinline__ void pack_part(const TieredBlock& layout, int part, const uint16_t* rows, uint8_t* block,
                                          const Shared& shared) {
  constexpr int kSteps = 8 / kBits / kTiles;  // of 32 tokens in a group of 512 bytes
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int stride = row_stride(layout.format.head_dim), last = (1 << kBits) - 1;
  const bool cells = layout.format.value_grid == Grid::kCells;
  for (int item = warp; item < layout.format.value_part(part).groups(); item += kWarps) {
    const int step = item * kSteps % 4, first = 64 * part + 16 * kTiles * (item * kSteps / 4);
    uint32_t words[4] = {};
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int b = 0; b < 4; ++b) {  // bytes of a word: fragment_byte
          const int token = 32 * (step + u) + 16 * (w / 2) + 2 * (lane % 4) + b / 2 + 8 * (b % 2);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            const int channel = first + 16 * tile + 8 * (w % 2) + lane / 4;
            const Scale scale = shared.scales[channel / layout.format.value_group * kPageTokens + token];
            const uint32_t code =
                uniform_code(element(rows, stride, token, channel), scale.lo, scale.inverse, cells, last);
            words[w] |= (code & static_cast<uint32_t>(last)) << (8 * b + kBits * (kTiles * u + tile));
          }
        }
      }
    }
    reinterpret_cast<uint4*>(block + layout.value_codes_offset(part) + item * kGroupBytes)[lane] =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// The values, and zeros up to the end of the block.
__device__ __forceinline__ void seal_values(const TieredBlock& layout, const uint16_t* rows, uint8_t* block,
                                            Shared& shared) {
  const TieredFormat& format = layout.format;
  const int d = format.head_dim, thread = static_cast<int>(threadIdx.x);
  const int groups = (d + format.value_group - 1) / format.value_group;
  if (thread < groups) shared.greatest[thread] = 0, shared.least[thread] = 0xffff;
  __syncthreads();
  for (int i = thread; i < groups * kPageTokens; i += kThreads) {
    const int token = i % kPageTokens, group = i / kPageTokens, begin = group * format.value_group;
    const int end = min(begin + format.value_group, d);
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
    const Quantiser quantiser = quantiser_of(stored, uniform::codes_of(format.value_bits, format.value_grid));
    shared.scales[i] = {quantiser.lo, quantiser.inverse};
    atomicMax(&shared.greatest[group], uint32_t{stored.range});  // not negative, so ordered like its bits
    atomicMin(&shared.least[group], uint32_t{stored.range});
    shared.words[i] = stored.range | uint32_t{stored.lo} << 16;
  }
  __syncthreads();
  for (int span = 0; span < format.value_spans(); ++span) {
    const int first = span * kValueSpan / format.value_group;
    for (int i = thread; i < format.span_groups(span) * kPageTokens / 2; i += kThreads) {
      const int group = i / (kPageTokens / 2), at = i % (kPageTokens / 2);
      const uint32_t* const words = shared.words + (first + group) * kPageTokens;
      const int range = at / 8 + at % 8 * 16, lo = 2 * at;  // tokens of two that stand side by side
      *reinterpret_cast<uint32_t*>(block + layout.value_range_byte(span, group, range)) =
          (words[range] & 0xffffu) | words[range + 8] << 16;
      *reinterpret_cast<uint32_t*>(block + layout.value_lo_byte(span, group, lo)) =
          words[lo] >> 16 | (words[lo + 1] & 0xffff0000u);
    }
  }
  const bool uneven = __syncthreads_or(thread < groups && uneven_ranges(static_cast<int>(shared.greatest[thread]),
                                                                        static_cast<int>(shared.least[thread])));
  for (int i = thread; i < format.value_spans() * (kValueSpan / 32); i += kThreads) {  // with zeros behind the last
    const int span = i / (kValueSpan / 32), group = i % (kValueSpan / 32);
    const int of = min(span * kValueSpan / format.value_group + group, groups - 1);
    const uint32_t sign = uneven ? 0x80000000u : 0;
    *reinterpret_cast<uint32_t*>(block + layout.value_bias_byte(span, group)) =
        group < format.span_groups(span) ? sign | rounding_bias(static_cast<int>(shared.greatest[of])) : 0;
  }
  for (int part = 0; 64 * part < d; ++part) {
    if (format.value_bits == 4) {
      pack_part<4, 2>(layout, part, rows, block, shared);
    } else if (format.value_part(part).fours()) {
      pack_part<2, 4>(layout, part, rows, block, shared);
    } else {
      pack_part<2, 2>(layout, part, rows, block, shared);
    }
  }
  for (int i = layout.end() / 4 + thread; i < layout.bytes() / 4; i += kThreads) {
    reinterpret_cast<uint32_t*>(block)[i] = 0;
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
  const cudaError_t allowed = allow_shared_memory(seal, row_bytes(d));
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
