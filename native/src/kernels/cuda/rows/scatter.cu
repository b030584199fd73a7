#include "kernels/cuda/rows/scatter.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 64;

__global__ void __launch_bounds__(kThreads) scatter_pieces(const uint8_t* bytes, const Piece* pieces) {
  const Piece piece = pieces[blockIdx.x];
  const auto* from = reinterpret_cast<const uint64_t*>(bytes + piece.offset);
  auto* to = reinterpret_cast<uint64_t*>(piece.to);
  for (uint32_t i = threadIdx.x; i < piece.bytes / sizeof(uint64_t); i += kThreads) to[i] = from[i];
}

}  // namespace

cudaError_t scatter(const uint8_t* bytes, const Piece* pieces, int count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  scatter_pieces<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(bytes, pieces);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
