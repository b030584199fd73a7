// A block decodes one side of one kv head of one page, a thread four elements at a time, or two times four where pairs
// of channels leave together. Neighbouring threads take neighbouring channels, so that rows leave in whole sectors;
// codes come from the first cache, where neighbours find them too.
#include "kernels/cuda/layout/page_elements.cuh"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/rows/half_rows.cuh"
#include "kernels/cuda/rows/unpack.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;

// Where a side goes: from the first page of the list on.
struct FloatSide {
  static constexpr int kValueChannels = 1;  // that a thread takes together
  float* rows;
  int64_t token_stride, head_stride;

  bool wanted() const { return rows != nullptr; }
  void skip(int64_t tokens) { rows += tokens * token_stride; }
  // Four channels x of token y. `at`: of the part.
  __device__ __forceinline__ void store_keys(const ElementSide& side, const float (&values)[4], int x, int y,
                                             int64_t at) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) rows[at + y * token_stride + x + quad_step(side, j)] = values[j];
  }
  // Channel y of four tokens x.
  __device__ __forceinline__ void store_values(const ElementSide& side, const float (&values)[1][4], int x, int y,
                                               int64_t at) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) rows[at + (x + quad_step(side, j)) * token_stride + y] = values[0][j];
  }
};

struct HalfSide : HalfRows {
  static constexpr int kValueChannels = 2;
  bool wanted() const { return high != nullptr; }
  void skip(int64_t tokens) {
    high += tokens * token_stride;
    if (low != nullptr) low += tokens * token_stride;
  }
  // Of four channels two and two are neighbours.
  __device__ __forceinline__ void store_keys(const ElementSide& side, const float (&values)[4], int x, int y,
                                             int64_t at) const {
    const int64_t row = at + y * token_stride + x;
    store_halves(*this, row, values[0], values[side.fragments ? 2 : 1]);
    store_halves(*this, row + (side.fragments ? 8 : 2), values[side.fragments ? 1 : 2], values[3]);
  }
  // Channels y and y + 1.
  __device__ __forceinline__ void store_values(const ElementSide& side, const float (&values)[2][4], int x, int y,
                                               int64_t at) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      store_halves(*this, at + (x + quad_step(side, j)) * token_stride + y, values[0][j], values[1][j]);
    }
  }
};

// What a kernel is compiled for. Fragments of few bits are what most pages have; knowing their sides at compile time
// spares two thirds of the instructions.
enum class Known { kNothing, kChannelKeys, kTokenKeys, kValues };

template <Known kKnown, int kBits>
__device__ __forceinline__ ElementSide with_known(ElementSide side) {
  if constexpr (kKnown != Known::kNothing) {
    side.elements = Elements::kCodes;
    side.fragments = true;
    side.keys = kKnown != Known::kValues;
    side.x_scales = kKnown != Known::kTokenKeys;
    side.part.bits = kBits;
    side.part.y_parameters = !side.x_scales;
    if (side.keys) {
      side.part.y_size = side.y_size = kPageTokens;
    } else {
      side.part.x_size = side.x_size = kPageTokens;
    }
  }
  return side;
}

template <class Output, Known kKnown, int kBits>
__global__ void __launch_bounds__(kThreads)
    decode_parts(const __grid_constant__ PageList<const uint8_t> pages, const __grid_constant__ ElementSide given,
                 const __grid_constant__ Output out) {
  __shared__ Scale scales[kMostScales];
  const ElementSide side = with_known<kKnown, kBits>(given);
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const uint8_t* first_part = pages.pages[blockIdx.x] + side.offset + head * side.stride;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kPageTokens;
  const int64_t first_out = first * out.token_stride + head * out.head_stride;

  // Threads lie along quads of a token (keys) or along channels (values); what is left of them rests.
  constexpr int kChannels = Output::kValueChannels;
  const int inner = side.keys ? side.quads() : side.y_size / kChannels;
  const int outer = side.keys ? side.y_size : side.quads();
  const int at = thread % inner, lines = kThreads / inner;
  const auto decode = [&](const uint8_t* part, int x, int y, float(&values)[4]) {
    if (side.elements == Elements::kHalves) {
      decode_halves(side, part, x, y, values);
    } else {
      decode_codes(side, part, scales, x, y, values);
    }
  };
  for (int p = 0; p < side.parts; ++p) {
    const uint8_t* part = first_part + (p == 0 ? 0 : static_cast<int64_t>(p) * side.part.bytes());
    __syncthreads();
    for (int i = thread; i < side.scales; i += kThreads) scales[i] = scale_at(side, part, i);
    __syncthreads();
#pragma unroll 4
    for (int line = thread / inner; line < outer && thread < inner * lines; line += lines) {
      if (side.keys) {
        float values[4];
        decode(part, quad_x(side, at), line, values);
        out.store_keys(side, values, quad_x(side, at), line, first_out + p * kValueSpan);
      } else {
        float values[kChannels][4];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) decode(part, quad_x(side, line), kChannels * at + c, values[c]);
        out.store_values(side, values, quad_x(side, line), kChannels * at, first_out + p * kValueSpan);
      }
    }
  }
}

template <class Output>
using Kernel = void (*)(PageList<const uint8_t>, ElementSide, Output);

template <class Output, Known kKnown>
Kernel<Output> kernel_of(int bits) {
  switch (bits) {
    case 1:
      return decode_parts<Output, kKnown, 1>;
    case 2:
      return decode_parts<Output, kKnown, 2>;
    case 3:
      return decode_parts<Output, kKnown, 3>;
    case 4:
      return decode_parts<Output, kKnown, 4>;
    case 8:
      return decode_parts<Output, kKnown, 8>;
    default:
      return decode_parts<Output, Known::kNothing, 0>;
  }
}

template <class Output>
Kernel<Output> kernel_of(const ElementSide& side) {
  if (!side.fragments) return decode_parts<Output, Known::kNothing, 0>;
  if (!side.keys) return kernel_of<Output, Known::kValues>(side.part.bits);
  return side.x_scales ? kernel_of<Output, Known::kChannelKeys>(side.part.bits)
                       : kernel_of<Output, Known::kTokenKeys>(side.part.bits);
}

template <class Output, class Request>
cudaError_t launch(const Request& request, const Output (&out)[2], cudaStream_t stream) {
  const int d = request.shape.head_dim;
  if (request.page_count < 0 || d < 32 || d > kMaxHeadDim || d % 16 != 0) return cudaErrorInvalidValue;
  for (int i = 0; i < 2; ++i) {
    const ElementSide side = element_side(request.sides[i]);
    if (side.elements == Elements::kOwn || !out[i].wanted()) continue;
    if (side.head_dim != d || side.scales > kMostScales) return cudaErrorInvalidValue;
    const Kernel<Output> kernel = kernel_of<Output>(side);
    const cudaError_t error = for_page_lists(
        request.pages, request.page_count, [&](const PageList<const uint8_t>& list, int count, int64_t first) {
          Output here = out[i];
          here.skip(first * kPageTokens);
          kernel<<<dim3(count, request.shape.kv_heads), kThreads, 0, stream>>>(list, side, here);
          return cudaGetLastError();
        });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t unpack_rows(const UnpackRowsRequest& request, cudaStream_t stream) {
  FloatSide out[2];
  for (int i = 0; i < 2; ++i) out[i] = {request.out.sides[i], request.out.token_stride, request.out.head_stride};
  return launch(request, out, stream);
}

cudaError_t unpack_half_rows(const UnpackHalfRowsRequest& request, cudaStream_t stream) {
  HalfSide out[2];
  for (int i = 0; i < 2; ++i) out[i] = {request.out[i]};
  return launch(request, out, stream);
}

}  // namespace kvasir::cuda
