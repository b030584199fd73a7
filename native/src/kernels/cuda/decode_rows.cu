// A block decodes one side of one kv head of one page; a thread one channel, token after token. Rows leave in whole
// lines; codes come from the first cache, where neighbours find them too.
#include "kernels/cuda/decode_rows.h"
#include "kernels/cuda/page_elements.cuh"
#include "kernels/cuda/page_list.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kTokens = kTokensPerPage;
constexpr int kMostThreads = 256;

struct Params {
  ElementSide sides[2];
  float* out[2];  // of the first page of the list; null: left out
  int head_dim;
  int64_t token_stride, head_stride;
};

__global__ void __launch_bounds__(kMostThreads)
    decode_parts(const __grid_constant__ PageList<const uint8_t> pages, const __grid_constant__ Params params) {
  const ElementSide& side = params.sides[blockIdx.z];
  if (params.out[blockIdx.z] == nullptr) return;
  const int head = static_cast<int>(blockIdx.y), channel = static_cast<int>(threadIdx.x);
  const uint8_t* part = pages.pages[blockIdx.x] + side.offset + head * side.stride;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens;
  float* out = params.out[blockIdx.z] + first * params.token_stride + head * params.head_stride + channel;
  for (int token = static_cast<int>(threadIdx.y); token < kTokens; token += static_cast<int>(blockDim.y)) {
    out[token * params.token_stride] = element_at(side, part, params.head_dim, token, channel);
  }
}

}  // namespace

cudaError_t decode_rows(const DecodeRowsRequest& request, cudaStream_t stream) {
  const int d = request.shape.head_dim;
  if (request.page_count < 0 || d < 32 || d > kMaxHeadDim || d % 16 != 0) return cudaErrorInvalidValue;
  Params params = {{element_side(request.sides[0]), element_side(request.sides[1])},
                   {},
                   d,
                   request.out.token_stride,
                   request.out.head_stride};
  for (int i = 0; i < 2; ++i) {
    if (request.sides[i].codec != StoredCodec::kNone) params.out[i] = request.out.sides[i];
  }
  const auto launch = [&](const PageList<const uint8_t>& list, int count, int64_t first) {
    Params here = params;
    for (float*& out : here.out) {
      if (out != nullptr) out += first * kTokens * params.token_stride;
    }
    decode_parts<<<dim3(count, request.shape.kv_heads, 2), dim3(d, kMostThreads / d), 0, stream>>>(list, here);
    return cudaGetLastError();
  };
  return for_page_lists(request.pages, request.page_count, launch);
}

}  // namespace kvasir::cuda
