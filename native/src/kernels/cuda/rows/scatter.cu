#include "kernels/cuda/rows/scatter.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 64;

__global__ void __launch_bounds__(kThreads) scatter_pieces(const uint64_t* words, const Piece* pieces) {
  const Piece piece = pieces[blockIdx.x];
  for (uint32_t i = threadIdx.x; i < piece.count; i += kThreads) piece.to[i] = words[piece.first + i];
}

}  // namespace

cudaError_t scatter(const uint64_t* words, const Piece* pieces, int count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  scatter_pieces<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(words, pieces);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
