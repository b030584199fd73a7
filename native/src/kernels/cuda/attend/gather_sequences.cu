#include "kernels/cuda/attend/gather_sequences.h"

namespace kvasir::cuda {
namespace {

constexpr int kVectors = sizeof(DeviceSequence) / sizeof(uint4);

// A thread copies 16 bytes.
__global__ void gather_sequences(const DeviceSequence* const* sequences, DeviceSequence* out) {
  const auto* from = reinterpret_cast<const uint4*>(sequences[blockIdx.x]);
  reinterpret_cast<uint4*>(out + blockIdx.x)[threadIdx.x] = from[threadIdx.x];
}

}  // namespace

cudaError_t launch_gather_sequences(const DeviceSequence* const* sequences, int count, DeviceSequence* out,
                                    cudaStream_t stream) {
  if (count < 1) return cudaErrorInvalidValue;
  gather_sequences<<<count, kVectors, 0, stream>>>(sequences, out);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
