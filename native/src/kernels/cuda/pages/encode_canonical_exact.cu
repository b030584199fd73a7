// Seals pages as docs/format.md lays them out. A block takes one side of one kv head of one page; a thread makes the
// parameters of one group, then one 32-bit lane of a plane at a time.
#include <cuda_fp16.h>

#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/pages/canonical_pack.cuh"
#include "kernels/cuda/pages/encode_parts.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostGroups = 1024;  // of a part: 256 channels in groups of 32 tokens, or 128 tokens in groups of 32

struct PageSide {
  const uint16_t* rows;   // of kv head 0, first page
  int64_t head_elements;  // from one kv head's rows to the next one's
  int64_t offset, stride;
  Elements elements;
  CodedSide coded;
};

struct Params {
  PageSide sides[2];
  int64_t page_elements;
};

__global__ void __launch_bounds__(kThreads)
    seal_canonical(const __grid_constant__ PageList<uint8_t> pages, const __grid_constant__ Params params) {
  __shared__ Quantiser quantisers[kMostGroups];
  __shared__ double inverse16[kMostGroups];
  const PageSide& page = params.sides[blockIdx.z];
  if (page.elements == Elements::kOwn) return;
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const uint16_t* rows = page.rows + head * page.head_elements + blockIdx.x * params.page_elements;
  uint8_t* part = pages.pages[blockIdx.x] + page.offset + head * page.stride;
  if (page.elements == Elements::kHalves) {
    for (int64_t i = thread; i < params.page_elements / 8; i += kThreads) {
      reinterpret_cast<uint4*>(part)[i] = reinterpret_cast<const uint4*>(rows)[i];
    }
    return;
  }
  const CodedSide& side = page.coded;
  const uniform::Layout& layout = side.layout;
  for (int i = thread; i < layout.entries * layout.groups; i += kThreads) {
    const int entry = i % layout.entries, group = i / layout.entries;
    uniform::Parameters stored = group_parameters(side, rows, i);
    quantisers[i] = quantiser_of(stored, side.codes);
    inverse16[i] = inverse16_of(quantisers[i].range, side.codes.cells ? Grid::kCells : Grid::kEnds);
    if (side.cut() && side.shift == progressive::Shift::kModified) {
      progressive::modify_parameters_to(side.bits, &stored.lo, &stored.range);
    }
    *reinterpret_cast<uint16_t*>(part + layout.lo_offset(group) + 2 * entry) = stored.lo;
    *reinterpret_cast<uint16_t*>(part + layout.range_offset(group) + 2 * entry) = stored.range;
  }
  __syncthreads();
  for (int p = 0; p < layout.plane_count; ++p) {
    auto* out = reinterpret_cast<uint32_t*>(part + layout.plane_offset[p]);
    for (int i = thread; i < plane_words(side, p); i += kThreads) {
      out[i] = plane_word(side, rows, quantisers, inverse16, p, i);
    }
  }
}

PageSide side_of(const EncodeRequest& request, int index) {
  const SideFormat& format = request.sides[index];
  PageSide side = {};
  side.elements = format.format.elements;
  if (side.elements == Elements::kOwn) return side;
  side.rows = request.staging.sides[index] + request.first_row * request.shape.head_dim;
  side.head_elements = request.staging.rows * request.shape.head_dim;
  side.offset = format.offset;
  side.stride = format.stride;
  if (side.elements != Elements::kHalves) side.coded = coded_side(format);
  return side;
}

}  // namespace

cudaError_t encode_canonical(const EncodeRequest& request, cudaStream_t stream) {
  const int64_t page_elements = int64_t{kPageTokens} * request.shape.head_dim;
  const Params params = {{side_of(request, 0), side_of(request, 1)}, page_elements};
  for (const PageSide& side : params.sides) {
    if (side.coded.layout.entries * side.coded.layout.groups > kMostGroups) return cudaErrorInvalidValue;
  }
  const auto launch = [&](const PageList<uint8_t>& list, int count, int64_t first) {
    Params here = params;
    for (PageSide& side : here.sides) {
      if (side.elements != Elements::kOwn) side.rows += first * page_elements;
    }
    seal_canonical<<<dim3(count, request.shape.kv_heads, 2), kThreads, 0, stream>>>(list, here);
    return cudaGetLastError();
  };
  return for_page_lists(request.pages, request.page_count, launch);
}

}  // namespace kvasir::cuda
