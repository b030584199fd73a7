// A block decodes one side of one kv head of one page; a thread one channel, token after token. Rows leave in whole
// lines; codes come from the first cache, where neighbours find them too.
#include <cuda_fp16.h>

#include "codecs/uniform/format.h"
#include "codecs/uniform/formula.h"
#include "kernels/cuda/decode_rows.h"
#include "kernels/cuda/page_list.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kTokens = kTokensPerPage;
constexpr int kMostThreads = 256;

struct Side {
  float* out;  // of the first page of the list
  int64_t offset, stride;
  StoredCodec codec;
  bool fragments, keys, per_token;
  PartLayout part;         // of fragments
  int parts;               // of fragments: a channel's part is channel / 128 where there are several
  uniform::Layout layout;  // of canonical codes
  int levels;
};

struct Params {
  Side sides[2];
  int head_dim;
  int64_t token_stride, head_stride;
};

struct Coded {
  int code;
  uint16_t lo, range;
};

__device__ __forceinline__ uint16_t load16(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }

__device__ __forceinline__ Coded canonical_code(const Side& side, const uint8_t* part, int token, int channel) {
  const uniform::Layout& layout = side.layout;
  const int entry = side.per_token ? token : channel;
  const int g = (side.per_token ? channel : token) / layout.group;
  const int code = side.keys ? layout.get(part, channel, token) : layout.get(part, token, channel);
  return {code, load16(part + layout.lo_offset(g) + 2 * entry), load16(part + layout.range_offset(g) + 2 * entry)};
}

// A channel's own part, and its place there.
__device__ __forceinline__ const uint8_t* own_part(const Side& side, const uint8_t* first, int* channel) {
  if (side.parts == 1) return first;
  const int index = *channel / kValueSpan;
  *channel %= kValueSpan;
  return first + static_cast<int64_t>(index) * side.part.bytes();
}

__device__ __forceinline__ Coded fragment_code(const Side& side, const uint8_t* part, int token, int channel) {
  const PartLayout& layout = side.part;
  const int x = side.keys ? channel : token, y = side.keys ? token : channel;
  int code = 0;
  for (int p = 0; p < layout.planes(); ++p) {
    const Place place = layout.code_place(p, x, y);
    const int bits = part[layout.parameter_bytes() + place.byte] >> place.bit & ((1 << layout.plane_bits(p)) - 1);
    code |= bits << layout.plane_shift(p);
  }
  const uint8_t* parameters = part + layout.parameter_byte(layout.y_parameters ? y : x);
  return {code, load16(parameters + 2), load16(parameters)};
}

__device__ __forceinline__ float element(const Side& side, const uint8_t* part, int head_dim, int token, int channel) {
  if (side.codec == StoredCodec::kFloat16) {
    if (!side.fragments) return half_to_float(load16(part + 2 * (token * head_dim + channel)));
    const uint8_t* own = own_part(side, part, &channel);
    return half_to_float(
        load16(own + (side.keys ? side.part.float16_byte(channel, token) : side.part.float16_byte(token, channel))));
  }
  Coded coded;
  if (side.fragments) {
    const uint8_t* own = own_part(side, part, &channel);
    coded = fragment_code(side, own, token, channel);
  } else {
    coded = canonical_code(side, part, token, channel);
  }
  const float step = uniform::step_of(half_to_float(coded.range), side.levels);
  return uniform::decode_element(coded.code, half_to_float(coded.lo), step);
}

__global__ void __launch_bounds__(kMostThreads)
    decode_parts(const __grid_constant__ PageList<const uint8_t> pages, const __grid_constant__ Params params) {
  const Side& side = params.sides[blockIdx.z];
  if (side.out == nullptr) return;
  const int head = static_cast<int>(blockIdx.y), channel = static_cast<int>(threadIdx.x);
  const uint8_t* part = pages.pages[blockIdx.x] + side.offset + head * side.stride;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens;
  float* out = side.out + first * params.token_stride + head * params.head_stride + channel;
  for (int token = static_cast<int>(threadIdx.y); token < kTokens; token += static_cast<int>(blockDim.y)) {
    out[token * params.token_stride] = element(side, part, params.head_dim, token, channel);
  }
}

Side side_of(const DecodeRowsRequest& request, int index) {
  const SideFormat& format = request.sides[index];
  Side side = {};
  side.codec = format.codec;
  if (side.codec == StoredCodec::kNone) return side;
  side.out = request.out.sides[index];
  side.offset = format.offset;
  side.stride = format.stride;
  side.fragments = format.fragments;
  side.keys = index == 0;
  side.per_token = format.format.axis == Axis::kToken;
  side.levels = uniform::levels_of(format.format.bits);
  if (format.fragments) {
    side.part = format.part();
    side.parts = format.parts();
  } else if (side.codec != StoredCodec::kFloat16) {
    side.layout = uniform::layout_of(format.format);
  }
  return side;
}

}  // namespace

cudaError_t decode_rows(const DecodeRowsRequest& request, cudaStream_t stream) {
  const int d = request.shape.head_dim;
  if (request.page_count < 0 || d < 32 || d > kMaxHeadDim || d % 16 != 0) return cudaErrorInvalidValue;
  Params params = {{side_of(request, 0), side_of(request, 1)}, d, request.out.token_stride, request.out.head_stride};
  const auto launch = [&](const PageList<const uint8_t>& list, int count, int64_t first) {
    Params here = params;
    for (Side& side : here.sides) {
      if (side.out != nullptr) side.out += first * kTokens * params.token_stride;
    }
    decode_parts<<<dim3(count, request.shape.kv_heads, 2), dim3(d, kMostThreads / d), 0, stream>>>(list, here);
    return cudaGetLastError();
  };
  return for_page_lists(request.pages, request.page_count, launch);
}

}  // namespace kvasir::cuda
