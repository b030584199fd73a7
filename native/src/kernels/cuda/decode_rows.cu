// A block decodes one side of one kv head of one page, a thread four elements at a time. Neighbouring threads take
// neighbouring channels, so that rows leave in whole sectors; codes come from the first cache, where neighbours find
// them too.
#include "kernels/cuda/decode_rows.h"
#include "kernels/cuda/page_elements.cuh"
#include "kernels/cuda/page_list.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;

struct Params {
  ElementSide sides[2];
  float* out[2];  // of the first page of the list; null: left out
  int64_t token_stride, head_stride;
};

// Four values at four x of one y: channels of one token, or one channel of four tokens.
__device__ __forceinline__ void store_quad(const ElementSide& side, const float (&values)[4], int x, int y, float* out,
                                           int64_t token_stride) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int at = x + quad_step(side, j);
    out[(side.keys ? y : at) * token_stride + (side.keys ? at : y)] = values[j];
  }
}

__global__ void __launch_bounds__(kThreads)
    decode_parts(const __grid_constant__ PageList<const uint8_t> pages, const __grid_constant__ Params params) {
  __shared__ Scale scales[kMostScales];
  const ElementSide& side = params.sides[blockIdx.z];
  float* const to = params.out[blockIdx.z];
  if (to == nullptr) return;
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const uint8_t* first_part = pages.pages[blockIdx.x] + side.offset + head * side.stride;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokensPerPage;
  float* out = to + first * params.token_stride + head * params.head_stride;

  // Threads lie along quads of a token (keys) or along channels (values); what is left of them rests.
  const int inner = side.keys ? side.quads() : side.y_size, outer = side.keys ? side.y_size : side.quads();
  const int at = thread % inner, lines = kThreads / inner;
  for (int p = 0; p < side.parts; ++p) {
    const uint8_t* part = first_part + (p == 0 ? 0 : static_cast<int64_t>(p) * side.part.bytes());
    __syncthreads();
    for (int i = thread; i < side.scales; i += kThreads) scales[i] = scale_at(side, part, i);
    __syncthreads();
    for (int line = thread / inner; line < outer && thread < inner * lines; line += lines) {
      const int x = quad_x(side, side.keys ? at : line), y = side.keys ? line : at;
      float values[4];
      if (side.codec == StoredCodec::kFloat16) {
        decode_halves(side, part, x, y, values);
      } else {
        decode_codes(side, part, scales, x, y, values);
      }
      store_quad(side, values, x, y, out + p * kValueSpan, params.token_stride);
    }
  }
}

}  // namespace

cudaError_t decode_rows(const DecodeRowsRequest& request, cudaStream_t stream) {
  const int d = request.shape.head_dim;
  if (request.page_count < 0 || d < 32 || d > kMaxHeadDim || d % 16 != 0) return cudaErrorInvalidValue;
  Params params = {};
  for (int i = 0; i < 2; ++i) {
    params.sides[i] = element_side(request.sides[i]);
    if (params.sides[i].codec == StoredCodec::kNone) continue;
    if (params.sides[i].head_dim != d || params.sides[i].scales > kMostScales) return cudaErrorInvalidValue;
    params.out[i] = request.out.sides[i];
  }
  params.token_stride = request.out.token_stride;
  params.head_stride = request.out.head_stride;
  const auto launch = [&](const PageList<const uint8_t>& list, int count, int64_t first) {
    Params here = params;
    for (float*& out : here.out) {
      if (out != nullptr) out += first * kTokensPerPage * params.token_stride;
    }
    decode_parts<<<dim3(count, request.shape.kv_heads, 2), kThreads, 0, stream>>>(list, here);
    return cudaGetLastError();
  };
  return for_page_lists(request.pages, request.page_count, launch);
}

}  // namespace kvasir::cuda
