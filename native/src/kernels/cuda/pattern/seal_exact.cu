// Seals pages with labels. A block takes one side of one kv head of one page: rows to shared memory, labels
// (match.cuh), residuals in their place, parameters, then codes in the order of layout/fragments.h.
#include <cuda_fp16.h>

#include "kernels/cuda/layout/head_dims.h"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/pages/quantise.cuh"
#include "kernels/cuda/pattern/match.cuh"
#include "kernels/cuda/pattern/seal.h"
#include "kernels/cuda/primitives/shared_memory.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = kMatchThreads;
constexpr int kTokens = kPageTokens;
// The widest range that codec pattern lets a group have (codecs/pattern/codec.cc).
constexpr float kMaxRange = 65504.0f - 64.0f;

struct Side {
  const uint16_t* rows;   // of kv head 0, first page
  int64_t head_elements;  // from one kv head's rows to the next one's
  VectorTable table;
  MatchOptions options;
  PartLayout part;
  uniform::Codes codes;
  int parts;
  int offset;  // of the first part in a head block
};

struct Params {
  Side sides[2];
  int64_t first_page;
  int64_t head_bytes;
};

template <int D>
struct Tile : MatchTile<D> {
  static constexpr int kSpans = D > kValueSpan ? D / kValueSpan : 1;
  float flat_channels[D], raw_channels[D];  // ranges
  float lo[kSpans * kTokens > D ? kSpans*kTokens : D], inverse[kSpans * kTokens > D ? kSpans*kTokens : D];
  double sums[2];
};

__device__ TableView view_of(const VectorTable& table, int64_t page, int kv_head) {
  const int64_t since = page - table.first_page + 1;
  const int newer = static_cast<int>(since < 0 ? 0 : since < table.added ? since : table.added);
  return {table.vectors + kv_head * table.head_stride, table.fixed, max(newer - (kMaxVisible - table.fixed), 0),
          table.vectors == nullptr ? 0 : table.fixed + newer};
}

// Keys share parameters across the tokens of a page: labels are taken or left together.
template <int D>
__device__ void decide_keys(const Side& side, const TableView& view, Tile<D>& tile) {
  for (int c = threadIdx.x; c < D; c += kThreads) {
    ResidualRange flat, raw;
    for (int t = 0; t < kTokens; ++t) {
      const float x = tile.rows[t * tile.kStride + c];
      const int label = tile.label[t];
      raw.add(x);
      flat.add(label == 0 ? x : __fsub_rn(x, labelled_element<D>(view, true, tile, label, c)));
    }
    tile.flat_channels[c] = flat.total();
    tile.raw_channels[c] = raw.total();
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0 && threadIdx.x < 64) {  // one after the other, as the host adds
    const float* ranges = threadIdx.x == 0 ? tile.flat_channels : tile.raw_channels;
    double sum = 0.0;
    bool wide = false;
    for (int c = 0; c < D; ++c) {
      wide = wide || ranges[c] > kMaxRange;
      sum = __dadd_rn(sum, __dmul_rn(ranges[c], ranges[c]));
    }
    tile.sums[threadIdx.x / 32] = wide ? __longlong_as_double(0x7ff0000000000000ll) : sum;
  }
  __syncthreads();
  const double least = side.options.accept ? tile.sums[1] : __longlong_as_double(0x7ff0000000000000ll);
  const bool accepted = tile.sums[0] < least;
  if (!accepted && threadIdx.x < kTokens) tile.label[threadIdx.x] = 0;
  __syncthreads();
}

// Values have parameters of their own, so each token decides.
template <int D>
__device__ void decide_values(const Side& side, const TableView& view, Tile<D>& tile) {
  const int t = threadIdx.x;
  if (t < kTokens && tile.label[t] != 0) {
    float flat = tile.distance[t], raw = tile.raw[t];  // which are ranges, unless matching was by squares
    if (side.options.squared) {
      ResidualRange residual, row;
      for (int c = 0; c < D; ++c) {
        const float x = tile.rows[t * tile.kStride + c];
        row.add(x);
        residual.add(__fsub_rn(x, labelled_element<D>(view, false, tile, tile.label[t], c)));
      }
      flat = residual.total();
      raw = row.total();
    }
    const float ratio = side.options.ratio;
    const bool accepted = flat <= kMaxRange && (ratio < 0.0f || flat <= __fmul_rn(ratio, raw));
    if (!accepted) tile.label[t] = 0;
  }
  __syncthreads();
}

template <int D>
__device__ void subtract_patterns(const TableView& view, bool keys, Tile<D>& tile) {
  for (int i = threadIdx.x; i < kTokens * D; i += kThreads) {
    const int t = i / D, c = i % D, label = tile.label[t];
    if (label == 0) continue;
    float& x = tile.rows[t * tile.kStride + c];
    x = __fsub_rn(x, labelled_element<D>(view, keys, tile, label, c));
  }
  __syncthreads();
}

// Parameters of channels (keys), or of tokens and spans (values).
template <int D>
__device__ void make_parameters(const Side& side, bool keys, uint8_t* block, Tile<D>& tile) {
  const int count = keys ? D : kTokens * side.parts;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int part = keys ? 0 : i / kTokens, x = keys ? i : i % kTokens;
    const float* first = tile.rows + (keys ? x : x * tile.kStride + part * kValueSpan);
    const int step = keys ? tile.kStride : 1, elements = keys ? kTokens : side.part.y_size;
    ResidualRange range;
    for (int j = 0; j < elements; ++j) range.add(first[j * step]);
    const uniform::Parameters stored = uniform::parameters_of(range.lowest, range.highest);
    const Quantiser quantiser = quantiser_of(stored, side.codes);
    tile.lo[i] = quantiser.lo;
    tile.inverse[i] = quantiser.inverse;
    const uint32_t word = stored.range | static_cast<uint32_t>(stored.lo) << 16;
    *reinterpret_cast<uint32_t*>(block + side.offset + part * side.part.bytes() + side.part.parameter_byte(x)) = word;
  }
  __syncthreads();
}

// The four bytes of word `word` of a lane, each the code of one element of fragment (unit, odd) of a part.
template <int D, bool kKeys, bool kCells>
__device__ __forceinline__ uint32_t fragment_word(const Side& side, int part, int unit, int odd, int word, int lane,
                                                  const Tile<D>& tile) {
  constexpr int kSteps = (kKeys ? D : kTokens) / 32;  // along x
  const int y = unit / kSteps * 32 + odd * 16 + word % 2 * 8 + lane / 4;
  uint32_t bytes = 0;
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const int x = unit % kSteps * 32 + word / 2 * 16 + b % 2 * 8 + lane % 4 * 2 + b / 2;  // as fragment_byte has it
    const float element = tile.rows[kKeys ? y * tile.kStride + x : x * tile.kStride + part * kValueSpan + y];
    const int parameter = kKeys ? x : part * kTokens + x;
    const uint32_t code = uniform_code(element, tile.lo[parameter], tile.inverse[parameter], kCells, side.codes.last);
    bytes |= (code & static_cast<uint32_t>(side.codes.last)) << 8 * b;
  }
  return bytes;
}

// All groups, 16 bytes a thread and turn. Positions of codes in bytes are those of PartLayout::code_place.
template <int D, bool kKeys, bool kCells>
__device__ void pack_codes(const Side& side, uint8_t* block, const Tile<D>& tile) {
  constexpr HeadLayout kTwoBits = {D, 2, 2};
  constexpr PartLayout kTwoBitPart = kKeys ? kTwoBits.key() : kTwoBits.value();
  const int groups = side.part.groups(), bits = side.part.bits;
  for (int i = threadIdx.x; i < side.parts * groups * 32; i += kThreads) {
    const int lane = i % 32, group = i / 32 % groups, part = i / 32 / groups;
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      auto code = [&](int unit, int odd) {
        return fragment_word<D, kKeys, kCells>(side, part, unit, odd, w, lane, tile);
      };
      if (bits == 8) {
        words[w] = code(group / 2, group % 2);
      } else if (bits == 4) {
        words[w] = code(group, 0) | code(group, 1) << 4;
      } else if (bits == 2) {
        const int low = kTwoBitPart.half_unit(group, 0), high = kTwoBitPart.half_unit(group, 1);
        words[w] = code(low, 0) | code(low, 1) << 2 | code(high, 0) << 4 | code(high, 1) << 6;
      } else if (bits == 1) {
        words[w] = 0;
        for (int u = 0; u < 8; ++u) words[w] |= code(4 * group + u / 2, u % 2) << u;
      } else if (group % 3 < 2) {  // 3 bits: low two
        const int unit = group / 3 * 4 + group % 3 * 2;
        words[w] = 0;
        for (int u = 0; u < 4; ++u) words[w] |= (code(unit + u / 2, u % 2) & 0x03030303u) << 2 * u;
      } else {  // and the high one
        words[w] = 0;
        for (int u = 0; u < 8; ++u) {
          const int bit = u / 4 * 4 + u / 2 % 2 + 2 * (u % 2);
          words[w] |= (code(group / 3 * 4 + u / 2, u % 2) >> 2 & 0x01010101u) << bit;
        }
      }
    }
    uint8_t* to = block + side.offset + part * side.part.bytes() + side.part.parameter_bytes() + group * kGroupBytes;
    *reinterpret_cast<uint4*>(to + 16 * lane) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads)
    seal(const __grid_constant__ PageList<uint8_t> pages, const __grid_constant__ Params params) {
  extern __shared__ __align__(16) uint8_t shared[];
  Tile<D>& tile = *reinterpret_cast<Tile<D>*>(shared);
  const bool keys = blockIdx.z == 0;
  const Side& side = params.sides[blockIdx.z];
  const int head = blockIdx.y;
  uint8_t* block = pages.pages[blockIdx.x] + head * params.head_bytes;
  if (!side.options.present) {
    if (threadIdx.x < kTokens) block[keys ? key_label_byte(threadIdx.x) : value_label_byte(threadIdx.x)] = 0;
    return;
  }
  load_match_rows<D>(side.rows + head * side.head_elements + static_cast<int64_t>(blockIdx.x) * kTokens * D, tile);
  const TableView view = view_of(side.table, params.first_page + blockIdx.x, head);
  if (side.options.squared) {
    match_rows<SquaredSum>(view, keys, side.options.raw, tile);
  } else {
    match_rows<ResidualRange>(view, keys, side.options.raw, tile);
  }
  if (keys) {
    decide_keys(side, view, tile);
  } else {
    decide_values(side, view, tile);
  }
  subtract_patterns(view, keys, tile);
  if (threadIdx.x < kTokens) {
    block[keys ? key_label_byte(threadIdx.x) : value_label_byte(threadIdx.x)] =
        static_cast<uint8_t>(tile.label[threadIdx.x]);
  }
  make_parameters(side, keys, block, tile);
  // Codes have divisions and a rule for each element, which are cheap where the side and the grid are known.
  if (keys) {
    side.codes.cells ? pack_codes<D, true, true>(side, block, tile) : pack_codes<D, true, false>(side, block, tile);
  } else {
    side.codes.cells ? pack_codes<D, false, true>(side, block, tile) : pack_codes<D, false, false>(side, block, tile);
  }
}

template <int D>
cudaError_t seal_all(const PatternSealRequest& request, const Params& params, cudaStream_t stream) {
  const int shared = static_cast<int>(sizeof(Tile<D>));
  const cudaError_t error = allow_shared_memory(seal<D>, shared);
  if (error != cudaSuccess) return error;
  const auto launch = [&](const PageList<uint8_t>& list, int count, int64_t first) {
    Params here = params;
    here.first_page += first;
    for (Side& side : here.sides) {
      if (side.options.present) side.rows += first * kTokens * D;
    }
    seal<D><<<dim3(count, request.shape.kv_heads, 2), kThreads, shared, stream>>>(list, here);
    return cudaGetLastError();
  };
  return for_page_lists(request.pages, request.page_count, launch);
}

struct CentreParams {
  const uint16_t* rows[2];  // of kv head 0, first page
  int64_t head_elements;
  VectorMemory vectors[2];
  int first_vector[2];
  int head_dim;
};

// Block: a page, a kv head, a side. Thread: a channel.
__global__ void centres(const __grid_constant__ CentreParams params) {
  const int side = blockIdx.z, d = params.head_dim, c = threadIdx.x;
  const VectorMemory& table = params.vectors[side];
  if (table.vectors == nullptr) return;
  const uint16_t* rows =
      params.rows[side] + blockIdx.y * params.head_elements + static_cast<int64_t>(blockIdx.x) * kTokens * d + c;
  ResidualRange range;
#pragma unroll 8
  for (int t = 0; t < kTokens; ++t) range.add(__half2float(__ushort_as_half(__ldg(rows + t * d))));
  const float centre = __fadd_rn(__fmul_rn(0.5f, range.lowest), __fmul_rn(0.5f, range.highest));
  const VectorTableLayout layout = {d};
  const int vector = params.first_vector[side] + static_cast<int>(blockIdx.x);
  const int64_t byte = side == 0 ? layout.key_byte(vector, c) : layout.value_byte(vector, c);
  *reinterpret_cast<uint16_t*>(table.vectors + blockIdx.y * table.head_stride + byte) =
      __half_as_ushort(__float2half_rn(centre));
}

bool residual_bits(int bits) { return bits == 1 || bits == 2 || bits == 3 || bits == 4 || bits == 8; }

}  // namespace

cudaError_t add_centres(const CentreRequest& request, cudaStream_t stream) {
  if (!head_dim_supported(request.shape.head_dim)) return cudaErrorInvalidValue;
  if (request.page_count == 0) return cudaSuccess;
  CentreParams params = {};
  params.head_dim = request.shape.head_dim;
  params.head_elements = request.staging.rows * params.head_dim;
  for (int s = 0; s < 2; ++s) {
    params.vectors[s] = request.vectors[s];
    params.first_vector[s] = request.first_vector[s];
    if (request.vectors[s].vectors == nullptr) continue;
    params.rows[s] = request.staging.sides[s] + request.first_row * params.head_dim;
  }
  const dim3 grid(static_cast<unsigned>(request.page_count), request.shape.kv_heads, 2);
  centres<<<grid, params.head_dim, 0, stream>>>(params);
  return cudaGetLastError();
}

bool seals_pattern_pages(int head_dim) {
  return shared_memory_has(with_head_dim(head_dim, [](auto dim) { return static_cast<int>(sizeof(Tile<dim.value>)); }));
}

cudaError_t seal_pattern_pages(const PatternSealRequest& request, cudaStream_t stream) {
  const int d = request.shape.head_dim;
  if (!head_dim_supported(d)) return cudaErrorInvalidValue;
  const HeadLayout layout = {d, request.bits[0], request.bits[1]};
  Params params = {};
  params.first_page = request.first_page;
  params.head_bytes = kBothLabelBytes + layout.bytes();
  for (int s = 0; s < 2; ++s) {
    Side& side = params.sides[s];
    side.options = request.options[s];
    if (!side.options.present) continue;
    if (!residual_bits(request.bits[s])) return cudaErrorInvalidValue;
    side.rows = request.staging.sides[s] + request.first_row * d;
    side.head_elements = request.staging.rows * d;
    side.table = request.tables[s];
    side.part = s == 0 ? layout.key() : layout.value();
    side.codes = uniform::codes_of(request.bits[s], request.grids[s]);
    side.parts = s == 0 ? 1 : layout.value_parts();
    side.offset = kBothLabelBytes + (s == 0 ? 0 : layout.value_offset(0));
  }
  return with_head_dim(d, [&](auto dim) { return seal_all<dim.value>(request, params, stream); });
}

}  // namespace kvasir::cuda
