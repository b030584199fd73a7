// Makes an AttendInstance of the kernel template.
#pragma once

#include "kernels/cuda/attend/instance.h"
#include "kernels/cuda/attend/kernel.cuh"
#include "kernels/cuda/attend/label_terms.cuh"
#include "kernels/cuda/primitives/overlapping_launch.h"

namespace kvasir::cuda {

template <int D, int kTiles>
struct InstanceOf {
  static constexpr Kernel<AttendParams> kAnyKind = attend_kernel<D, kTiles, true>,
                                        kPlainPages = attend_kernel<D, kTiles, false>;

  static int shared_bytes(int consumers, int slots, int cached, const AttendShape& shape) {
    return RingPlace<D>::bytes(consumers, slots) + SharedTail<D, kTiles>::bytes(consumers, cached, shape);
  }
  static cudaError_t prepare(int shared_bytes, bool* overlaps) {
    const cudaError_t error = prepare_kernel(kAnyKind, shared_bytes, overlaps);
    return error != cudaSuccess ? error : prepare_kernel(kPlainPages, shared_bytes, overlaps);
  }
  static cudaError_t launch(const AttendParams& params, int blocks, int shared_bytes, bool overlaps,
                            cudaStream_t stream) {
    const LaunchShape shape = {dim3(blocks), 32 * (params.consumers + 1), shared_bytes, overlaps};
    return launch_kernel(params.plain ? kPlainPages : kAnyKind, shape, params, stream);
  }
  static cudaError_t launch_terms(const AttendParams& params, bool overlaps, cudaStream_t stream) {
    const dim3 grid((params.room.vectors / kTileSize + kTermWarps - 1) / kTermWarps,
                    params.kv_heads * params.row_blocks, params.count);
    return launch_kernel<AttendParams>(label_terms_kernel<D, kTiles>, {grid, 32 * kTermWarps, 0, overlaps}, params,
                                       stream);
  }
  static constexpr AttendInstance value = {
      kMaxConsumers<D, kTiles>, kPartialFloats<D, kTiles>, shared_bytes, prepare, launch, launch_terms};
};

}  // namespace kvasir::cuda
