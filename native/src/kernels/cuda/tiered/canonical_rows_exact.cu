// Keys of pages of docs/format.md. The arithmetic is the host's, operation by operation.
#include "codecs/tiered/parameters.h"
#include "kernels/cuda/tiered/rows.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) tiered_key_rows(PageFormat format, RowUnpacking unpacking) {
  const int head = blockIdx.y, d = format.head_dim;
  for (int64_t page = blockIdx.x; page < unpacking.page_count; page += gridDim.x) {
    const uint8_t* const data = unpacking.pages[page] + unpacking.offset;
    const uint8_t* const part = data + reinterpret_cast<const uint32_t*>(data)[head];
    const tiered::Layout layout = tiered::layout_of(format, part);
    const uint8_t* const channels = tiered::channels_of(part);
    float* const rows = unpacking.rows + (head * unpacking.page_count + page) * kPageTokens * d;
    for (int i = threadIdx.x; i < kPageTokens * d; i += kThreads) {
      const int place = i / kPageTokens, token = i % kPageTokens;
      float value;
      if (place < layout.n16) {
        value = half_to_float(reinterpret_cast<const uint16_t*>(part + layout.value_offset(place))[token]);
      } else {
        const bool wide = place < layout.n16 + layout.n4;
        const int column = wide ? place - layout.n16 : place - layout.n16 - layout.n4;  // of its plane
        const tiered::Plane plane = wide ? layout.wide : layout.narrow;
        const int parameter = (wide ? 0 : layout.wide.columns) + column, group = token / layout.group;
        const uniform::Codes codes = uniform::codes_of(plane.bits, layout.grid_of(parameter));
        const uniform::Parameters stored = tiered::load_parameters(layout, part, group, parameter);
        const float lo = half_to_float(stored.lo), range = half_to_float(stored.range);
        const uint8_t byte = part[(wide ? layout.wide_offset : layout.narrow_offset) + plane.byte_of(column, token)];
        const float step = uniform::step_of(range, codes);
        value =
            uniform::decode_element(byte >> plane.bit_of(token) & codes.last, uniform::base_of(lo, step, codes), step);
      }
      rows[static_cast<int64_t>(token) * d + channels[place]] = value;
    }
  }
}

}  // namespace

cudaError_t launch_tiered_key_rows(const PageFormat& format, int kv_heads, const RowUnpacking& unpacking,
                                   cudaStream_t stream) {
  if (unpacking.page_count <= 0) return cudaSuccess;
  tiered_key_rows<<<dim3(grid_columns(unpacking.page_count), kv_heads), kThreads, 0, stream>>>(format, unpacking);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
