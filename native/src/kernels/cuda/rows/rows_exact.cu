#include <algorithm>

#include "kernels/cuda/rows/row_octets.cuh"
#include "kernels/cuda/rows/rows.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostTokenBlocks = 8192;  // a block takes every so many tokens: enough of them to fill any device

// A thread keeps its side, head and channels, and walks over tokens.
template <class Source, class Target>
__global__ void __launch_bounds__(kThreads)
    move_rows(const __grid_constant__ RowShape shape, const __grid_constant__ Source source,
              const __grid_constant__ Target target, int64_t count) {
  const int octets = shape.head_dim / kOctet;
  const int index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int side = static_cast<int>(blockIdx.z);
  if (index >= shape.kv_heads * octets || !source.has(side) || !target.has(side)) return;
  RowPlace at = {side, blockIdx.y, index / octets, index % octets * kOctet};
  for (; at.token < count; at.token += gridDim.y) target.store(at, source.load(at));
}

template <class Source, class Target>
cudaError_t launch(const RowShape& shape, const Source& source, const Target& target, int64_t count,
                   cudaStream_t stream) {
  const bool known = shape.head_dim >= 32 && shape.head_dim <= 256 && shape.head_dim % 16 == 0 && shape.kv_heads > 0;
  if (!known || count < 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const int octets = shape.kv_heads * (shape.head_dim / kOctet);
  const dim3 grid((octets + kThreads - 1) / kThreads, static_cast<unsigned>(std::min(count, kMostTokenBlocks)), 2);
  move_rows<<<grid, kThreads, 0, stream>>>(shape, source, target, count);
  return cudaGetLastError();
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

bool readable(const InputRows& input, int64_t first, int64_t count) {
  return aligned(input.sides[0]) && aligned(input.sides[1]) && aligned(input.key_scaling) && input.refused != nullptr &&
         first >= 0 && count >= 0 && count <= input.tokens - first;
}

}  // namespace

cudaError_t append_rows(const RowShape& shape, const InputRows& input, int64_t first, int64_t count,
                        const RowTiles& window, int64_t row, cudaStream_t stream) {
  if (!readable(input, first, count)) return cudaErrorInvalidValue;
  return launch(shape, InputSource{input, shape, first}, TileRows{window, shape, row}, count, stream);
}

cudaError_t stage_rows(const RowShape& shape, const InputRows& input, int64_t first, int64_t count,
                       const Staging& staging, int64_t row, cudaStream_t stream) {
  if (!readable(input, first, count) || row + count > staging.rows) return cudaErrorInvalidValue;
  return launch(shape, InputSource{input, shape, first}, StagingRows{staging, shape, row}, count, stream);
}

cudaError_t gather_rows(const RowShape& shape, const RowTiles& window, int64_t row, int64_t count,
                        const Staging& staging, int64_t to, cudaStream_t stream) {
  if (to + count > staging.rows) return cudaErrorInvalidValue;
  return launch(shape, TileRows{window, shape, row}, StagingRows{staging, shape, to}, count, stream);
}

cudaError_t fill_rows(const RowShape& shape, const Staging& staging, int64_t from, int64_t count,
                      const RowTiles& window, int64_t row, cudaStream_t stream) {
  if (from + count > staging.rows) return cudaErrorInvalidValue;
  return launch(shape, StagingRows{staging, shape, from}, TileRows{window, shape, row}, count, stream);
}

cudaError_t read_rows(const RowShape& shape, const RowTiles& window, int64_t row, int64_t count, const FloatRows& out,
                      cudaStream_t stream) {
  return launch(shape, TileRows{window, shape, row}, FloatOctets{out}, count, stream);
}

cudaError_t restore_rows(const RowShape& shape, const FloatRows& from, int64_t count, const RowTiles& window,
                         int64_t row, cudaStream_t stream) {
  return launch(shape, FloatOctets{from}, TileRows{window, shape, row}, count, stream);
}

}  // namespace kvasir::cuda
