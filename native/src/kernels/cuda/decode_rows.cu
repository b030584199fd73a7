// A block decodes one side of one kv head of one page, a thread four elements at a time. Neighbouring threads take
// neighbouring channels, so that rows leave in whole sectors; codes come from the first cache, where neighbours find
// them too.
#include "kernels/cuda/decode_rows.h"
#include "kernels/cuda/half_rows.cuh"
#include "kernels/cuda/page_elements.cuh"
#include "kernels/cuda/page_list.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;

// Where a side goes: from the first page of the list on.
struct FloatSide {
  float* rows;
  int64_t token_stride, head_stride;

  __host__ __device__ bool wanted() const { return rows != nullptr; }
  void skip(int64_t tokens) { rows += tokens * token_stride; }
  // Four values at four x of one y: channels of one token, or one channel of four tokens. `at`: of the part.
  __device__ __forceinline__ void store_quad(const ElementSide& side, const float (&values)[4], int x, int y,
                                             int64_t at) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int there = x + quad_step(side, j);
      rows[at + (side.keys ? y : there) * token_stride + (side.keys ? there : y)] = values[j];
    }
  }
};

struct HalfSide : HalfRows {
  __host__ __device__ bool wanted() const { return high != nullptr; }
  void skip(int64_t tokens) {
    high += tokens * token_stride;
    if (low != nullptr) low += tokens * token_stride;
  }
  __device__ __forceinline__ void store_quad(const ElementSide& side, const float (&values)[4], int x, int y,
                                             int64_t at) const {
    if (side.keys) {  // of four channels two and two are neighbours
      const int64_t row = at + y * token_stride + x;
      store_halves(*this, row, values[0], values[side.fragments ? 2 : 1]);
      store_halves(*this, row + (side.fragments ? 8 : 2), values[side.fragments ? 1 : 2], values[3]);
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) store_half(*this, at + (x + quad_step(side, j)) * token_stride + y, values[j]);
  }
};

template <class Output>
struct Params {
  ElementSide sides[2];
  Output out[2];
};

template <class Output>
__global__ void __launch_bounds__(kThreads)
    decode_parts(const __grid_constant__ PageList<const uint8_t> pages, const __grid_constant__ Params<Output> params) {
  __shared__ Scale scales[kMostScales];
  const ElementSide& side = params.sides[blockIdx.z];
  const Output& out = params.out[blockIdx.z];
  if (!out.wanted()) return;
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const uint8_t* first_part = pages.pages[blockIdx.x] + side.offset + head * side.stride;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokensPerPage;
  const int64_t first_out = first * out.token_stride + head * out.head_stride;

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
      out.store_quad(side, values, x, y, first_out + p * kValueSpan);
    }
  }
}

template <class Output, class Request>
cudaError_t launch(const Request& request, const Output (&out)[2], cudaStream_t stream) {
  const int d = request.shape.head_dim;
  if (request.page_count < 0 || d < 32 || d > kMaxHeadDim || d % 16 != 0) return cudaErrorInvalidValue;
  Params<Output> params = {};
  for (int i = 0; i < 2; ++i) {
    params.sides[i] = element_side(request.sides[i]);
    if (params.sides[i].codec == StoredCodec::kNone) continue;
    if (params.sides[i].head_dim != d || params.sides[i].scales > kMostScales) return cudaErrorInvalidValue;
    params.out[i] = out[i];
  }
  return for_page_lists(request.pages, request.page_count,
                        [&](const PageList<const uint8_t>& list, int count, int64_t first) {
                          Params<Output> here = params;
                          for (Output& each : here.out) {
                            if (each.wanted()) each.skip(first * kTokensPerPage);
                          }
                          decode_parts<<<dim3(count, request.shape.kv_heads, 2), kThreads, 0, stream>>>(list, here);
                          return cudaGetLastError();
                        });
}

}  // namespace

cudaError_t decode_rows(const DecodeRowsRequest& request, cudaStream_t stream) {
  FloatSide out[2];
  for (int i = 0; i < 2; ++i) out[i] = {request.out.sides[i], request.out.token_stride, request.out.head_stride};
  return launch(request, out, stream);
}

cudaError_t decode_half_rows(const DecodeHalfRowsRequest& request, cudaStream_t stream) {
  HalfSide out[2];
  for (int i = 0; i < 2; ++i) out[i] = {request.out[i]};
  return launch(request, out, stream);
}

}  // namespace kvasir::cuda
