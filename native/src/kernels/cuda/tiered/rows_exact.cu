// Compiled without contraction (CMakeLists.txt): the arithmetic is the host's, operation by operation.
#include "base/half.h"
#include "codecs/uniform/formula.h"
#include "kernels/cuda/tiered/rows.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads >= kMaxHeadDim, "a thread for each channel of the 16-bit tier");
constexpr uint16_t kNone = 0xffff;

struct Params {
  TieredFormat format;
  int kv_heads;
  const uint8_t* const* pages;
  int64_t page_count;
  float* sides[2];
};

// Where the codes of a channel are: its column, two a pair, kNone where it has none. Or its place in the 16-bit tier.
struct Shared {
  uint16_t low[kMaxHeadDim], high[kMaxHeadDim];
  uint16_t sixteen[kMaxHeadDim];
  float2 scales[kMaxHeadDim / 32 * kPageTokens];  // of values: base and step, by 32 channels and token
};

__device__ __forceinline__ float load_half(const uint8_t* from) {
  return half_to_float(*reinterpret_cast<const uint16_t*>(from));
}

__device__ __forceinline__ int code_at(const uint8_t* block, const TieredBlock& layout, int column, int token) {
  const Place place = layout.code_place(column / 2, column % 2, token);
  return block[place.byte] >> place.bit & 3;
}

__device__ __forceinline__ void decode_keys(const uint8_t* block, const TieredBlock& layout, Shared& shared,
                                            float* rows) {
  const int d = layout.format.head_dim, thread = static_cast<int>(threadIdx.x);
  if (thread < d) shared.low[thread] = shared.high[thread] = kNone;
  __syncthreads();
  for (int i = thread; i < 2 * layout.pairs(); i += kThreads) {
    const TieredColumn column = layout.column(i / 2, i % 2);
    if (column.kind == kPadding) continue;
    const auto* const stored = reinterpret_cast<const uint16_t*>(block + layout.column_byte(i / 2, i % 2));
    const int channel = channel_of_row(d, *stored);
    (column.kind == kHighBits ? shared.high : shared.low)[channel] = static_cast<uint16_t>(i);
  }
  if (thread < layout.n16) {
    const int halves = *reinterpret_cast<const uint16_t*>(block + layout.wide_row_byte(thread));
    shared.sixteen[channel_of_halves(halves)] = static_cast<uint16_t>(thread);
  }
  __syncthreads();
  // A thread has one channel, and every so many tokens of it.
  const int channel = thread % d, at_once = kThreads / d;
  if (thread >= at_once * d) return;
  const int low = shared.low[channel], high = shared.high[channel];
  if (low == kNone) {
    for (int token = thread / d; token < kPageTokens; token += at_once) {
      rows[token * d + channel] = load_half(block + layout.wide_element_byte(shared.sixteen[channel], token));
    }
    return;
  }
  const int group = layout.format.key_group;  // a multiple of at_once
  for (int first = 0; first < kPageTokens; first += group) {
    const uniform::Codes codes =
        high == kNone ? uniform::codes_of(2, layout.format.key_grid) : uniform::codes_of(4, Grid::kEnds);
    const float step = uniform::step_of(load_half(block + layout.range_byte(low / 2, low % 2, first / group)), codes);
    const float base = uniform::base_of(load_half(block + layout.lo_byte(channel, first / group)), step, codes);
    for (int token = first + thread / d; token < first + group; token += at_once) {
      int code = code_at(block, layout, low, token);
      if (high != kNone) code |= code_at(block, layout, high, token) << 2;
      rows[token * d + channel] = uniform::decode_element(code, base, step);
    }
  }
}

__device__ __forceinline__ void decode_values(const uint8_t* block, const TieredBlock& layout, Shared& shared,
                                              float* rows) {
  const TieredFormat& format = layout.format;
  const int d = format.head_dim, thread = static_cast<int>(threadIdx.x);
  const uniform::Codes kind = uniform::codes_of(format.value_bits, format.value_grid);
  for (int i = thread; i < d / 32 * kPageTokens; i += kThreads) {
    const int channel = i / kPageTokens * 32, token = i % kPageTokens;
    const int span = channel / kValueSpan, group = format.group_of(channel);
    const float step = uniform::step_of(load_half(block + layout.value_range_byte(span, group, token)), kind);
    shared.scales[i] = {uniform::base_of(load_half(block + layout.value_lo_byte(span, group, token)), step, kind),
                        step};
  }
  __syncthreads();
  const int channel = thread % d, at_once = kThreads / d;
  if (thread >= at_once * d) return;
  const float2* const scales = shared.scales + channel / 32 * kPageTokens;
  for (int token = thread / d; token < kPageTokens; token += at_once) {
    const Place place = layout.value_code_place(channel, token);
    const int code = block[place.byte] >> place.bit & kind.last;
    rows[token * d + channel] = uniform::decode_element(code, scales[token].x, scales[token].y);
  }
}

__global__ void __launch_bounds__(kThreads) tiered_rows(const __grid_constant__ Params params) {
  __shared__ Shared shared;
  const int head = static_cast<int>(blockIdx.y), side = static_cast<int>(blockIdx.z), d = params.format.head_dim;
  if (params.sides[side] == nullptr) return;
  for (int64_t page = blockIdx.x; page < params.page_count; page += gridDim.x) {
    const uint8_t* const data = params.pages[page];
    const TieredPlace place = reinterpret_cast<const TieredPlace*>(data)[head];
    const TieredBlock layout = tiered_block(params.format, place);
    float* const rows = params.sides[side] + (head * params.page_count + page) * kPageTokens * d;
    __syncthreads();  // the page before is done with what is shared
    if (side == 0) {
      decode_keys(data + place.offset, layout, shared, rows);
    } else {
      decode_values(data + place.offset, layout, shared, rows);
    }
  }
}

}  // namespace

cudaError_t launch_tiered_rows(const TieredRows& request, cudaStream_t stream) {
  if (!tiered_supported(request.keys, request.values)) return cudaErrorInvalidValue;
  if (request.page_count <= 0) return cudaSuccess;
  const Params params = {tiered_format(request.keys, request.values),
                         request.kv_heads,
                         request.pages,
                         request.page_count,
                         {request.sides[0], request.sides[1]}};
  tiered_rows<<<dim3(grid_columns(request.page_count), request.kv_heads, 2), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
