// Seals pages as docs/format.md lays them out: any head dim, axis, group and width. A block takes one side of one kv
// head of one page; a thread makes parameters of one group, then one 32-bit lane of a plane at a time.
#include <cuda_fp16.h>

#include "codecs/uniform/format.h"
#include "kernels/cuda/encode_parts.h"
#include "kernels/cuda/page_list.cuh"
#include "kernels/cuda/quantise.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kTokens = kTokensPerPage;
constexpr int kThreads = 256;
constexpr int kMostGroups = 1024;  // of a part: 256 channels in groups of 32 tokens, or 128 tokens in groups of 32

struct Side {
  const uint16_t* rows;   // of kv head 0, first page
  int64_t head_elements;  // from one kv head's rows to the next one's
  int64_t offset, stride;
  uniform::Layout layout;
  StoredCodec codec;
  bool keys, per_token;
  int bits;
};

struct Params {
  Side sides[2];
  int head_dim;
};

// What groups are quantised by, [group][entry].
struct Groups {
  Quantiser quantisers[kMostGroups];
  double inverse16[kMostGroups];
};

__device__ __forceinline__ float element(const uint16_t* rows, int64_t index) {
  return __half2float(__ushort_as_half(__ldg(rows + index)));
}

__device__ void make_parameters(const Side& side, int head_dim, const uint16_t* rows, uint8_t* part, Groups& groups) {
  const uniform::Layout& layout = side.layout;
  for (int i = static_cast<int>(threadIdx.x); i < layout.entries * layout.groups; i += kThreads) {
    const int entry = i % layout.entries, g = i / layout.entries;
    const int begin = g * layout.group;
    const int positions = side.per_token ? head_dim : kTokens;
    const int end = begin + layout.group < positions ? begin + layout.group : positions;
    const int64_t step = side.per_token ? 1 : head_dim;
    const int64_t base = side.per_token ? static_cast<int64_t>(entry) * head_dim : entry;
    float lowest = element(rows, base + begin * step), highest = lowest;
    for (int at = begin + 1; at < end; ++at) {
      const float x = element(rows, base + at * step);
      lowest = fminf(lowest, x);
      highest = fmaxf(highest, x);
    }
    const uniform::Parameters stored = uniform::parameters_of(lowest, highest);
    *reinterpret_cast<uint16_t*>(part + layout.lo_offset(g) + 2 * entry) = stored.lo;
    *reinterpret_cast<uint16_t*>(part + layout.range_offset(g) + 2 * entry) = stored.range;
    const Quantiser quantiser = quantiser_of(stored, side.bits);
    groups.quantisers[i] = quantiser;
    groups.inverse16[i] = quantiser.range > 0.0f ? progressive::kLevels / quantiser.range : 0.0;
  }
}

__device__ __forceinline__ uint32_t code_of(const Side& side, float x, const Quantiser& q, const double* inverse16) {
  uint32_t code = 0;
  if (side.codec == StoredCodec::kUniform) {
    code = uniform_code(x, q.lo, q.inverse);
  } else if (side.bits == 16) {
    code = progressive_code16(x, q.lo, *inverse16, &q.range);
  } else if (side.bits == 8) {
    code = progressive_code<8>(x, q.lo, q.inverse, &q.range);
  } else if (side.bits == 4) {
    code = progressive_code<4>(x, q.lo, q.inverse, &q.range);
  } else {
    code = progressive_code<2>(x, q.lo, q.inverse, &q.range);
  }
  return code & ((1u << side.bits) - 1);
}

// All codes of the part, four x of one y at a time. Planes of 3 bits cover different numbers of x: each is made on its
// own, and codes are computed once for each plane.
__device__ void make_codes(const Side& side, int head_dim, const uint16_t* rows, uint8_t* part, const Groups& groups) {
  const uniform::Layout& layout = side.layout;
  for (int p = 0; p < layout.plane_count; ++p) {
    const CodePlane& plane = layout.planes[p];
    const int vectors = plane.vectors_per_row();
    const int words = layout.y_size * vectors;
    const uint32_t mask = (1u << plane.bits) - 1;
    auto* out = reinterpret_cast<uint32_t*>(part + layout.plane_offset[p]);
    for (int i = static_cast<int>(threadIdx.x); i < words; i += kThreads) {
      const int vector = i / CodePlane::kLanes;
      const int y = vector / vectors * CodePlane::kLanes + i % CodePlane::kLanes;
      const int x0 = vector % vectors * plane.x_per_vector();
      uint32_t word = 0;
      for (int j = 0; j < plane.x_per_vector(); ++j) {
        const int x = x0 + j;
        if (x >= layout.x_size) break;
        const int token = side.keys ? y : x, channel = side.keys ? x : y;
        const int entry = side.per_token ? token : channel;
        const int group = (side.per_token ? channel : token) / layout.group * layout.entries + entry;
        const float value = element(rows, static_cast<int64_t>(token) * head_dim + channel);
        const uint32_t code = code_of(side, value, groups.quantisers[group], &groups.inverse16[group]);
        word |= (code >> plane.shift & mask) << (8 * (j % 4) + j / 4 * plane.bits);
      }
      out[i] = word;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    seal_canonical(const __grid_constant__ PageList<uint8_t> pages, const __grid_constant__ Params params) {
  __shared__ Groups groups;
  const Side& side = params.sides[blockIdx.z];
  if (side.codec == StoredCodec::kNone) return;
  const int head = static_cast<int>(blockIdx.y);
  const int64_t page_elements = static_cast<int64_t>(kTokens) * params.head_dim;
  const uint16_t* rows = side.rows + head * side.head_elements + blockIdx.x * page_elements;
  uint8_t* part = pages.pages[blockIdx.x] + side.offset + head * side.stride;
  if (side.codec == StoredCodec::kFloat16) {
    for (int64_t i = threadIdx.x; i < page_elements / 8; i += kThreads) {
      reinterpret_cast<uint4*>(part)[i] = reinterpret_cast<const uint4*>(rows)[i];
    }
    return;
  }
  make_parameters(side, params.head_dim, rows, part, groups);
  __syncthreads();
  make_codes(side, params.head_dim, rows, part, groups);
}

Side side_of(const EncodeRequest& request, int index) {
  const SideFormat& format = request.sides[index];
  Side side = {};
  side.codec = format.codec;
  if (side.codec == StoredCodec::kNone) return side;
  side.rows = request.staging.sides[index] + request.first_row * request.shape.head_dim;
  side.head_elements = request.staging.rows * request.shape.head_dim;
  side.offset = format.offset;
  side.stride = format.stride;
  side.keys = index == 0;
  if (side.codec == StoredCodec::kFloat16) return side;
  side.layout = uniform::layout_of(format.format);
  side.per_token = format.format.axis == Axis::kToken;
  side.bits = format.format.bits;
  return side;
}

}  // namespace

cudaError_t encode_canonical(const EncodeRequest& request, cudaStream_t stream) {
  const int d = request.shape.head_dim;
  const Params params = {{side_of(request, 0), side_of(request, 1)}, d};
  for (const Side& side : params.sides) {
    if (side.layout.entries * side.layout.groups > kMostGroups) return cudaErrorInvalidValue;
  }
  const auto launch = [&](const PageList<uint8_t>& list, int count, int64_t first) {
    Params here = params;
    for (Side& side : here.sides) {
      if (side.codec != StoredCodec::kNone) side.rows += first * kTokens * d;
    }
    seal_canonical<<<dim3(count, request.shape.kv_heads, 2), kThreads, 0, stream>>>(list, here);
    return cudaGetLastError();
  };
  return for_page_lists(request.pages, request.page_count, launch);
}

}  // namespace kvasir::cuda
