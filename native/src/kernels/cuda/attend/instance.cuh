// Makes an AttendInstance of the kernel template.
#pragma once

#include "kernels/cuda/attend/instance.h"
#include "kernels/cuda/attend/kernel.cuh"
#include "kernels/cuda/attend/label_terms.cuh"
#include "kernels/cuda/primitives/overlapping_launch.h"

namespace kvasir::cuda {

template <int D, int kTiles>
struct InstanceOf {
  static constexpr PageKinds kFar = kTiles == 1 ? PageKinds::kFarTwoBits : PageKinds::kLabelledTwoBits;
  // By PageKinds.
  static constexpr Kernel<AttendParams> kKernels[kPageKinds] = {
      attend_kernel<D, kTiles, PageKinds::kAny>, attend_kernel<D, kTiles, PageKinds::kPlain>,
      attend_kernel<D, kTiles, kFar>, attend_kernel<D, kTiles, PageKinds::kLabelledTwoBits>,
      attend_kernel<D, kTiles, PageKinds::kTwoBits>};
  static constexpr BlockNeeds kNeeds[kPageKinds] = {
      kBlockNeeds<PageKinds::kAny, D, kTiles>, kBlockNeeds<PageKinds::kPlain, D, kTiles>, kBlockNeeds<kFar, D, kTiles>,
      kBlockNeeds<PageKinds::kLabelledTwoBits, D, kTiles>, kBlockNeeds<PageKinds::kTwoBits, D, kTiles>};

  static constexpr int block_partials() {
    int warps = 0;
    for (const BlockNeeds& needs : kNeeds) {
      if (needs.distant_fronts && needs.consumers > warps) warps = needs.consumers;
    }
    return 2 + warps;
  }
  static int max_consumers(PageKinds pages) { return kNeeds[static_cast<int>(pages)].consumers; }
  static int shared_bytes(PageKinds pages, int consumers, int slots, int cached, const AttendShape& shape) {
    const BlockNeeds& needs = kNeeds[static_cast<int>(pages)];
    return needs.ring_bytes(consumers, slots) + SharedTail<D, kTiles>::bytes(needs, consumers, cached, shape);
  }
  static cudaError_t prepare(int shared_bytes, bool* overlaps) {
    cudaError_t error = cudaSuccess;
    for (const auto kernel : kKernels) {
      if (error == cudaSuccess) error = prepare_kernel(kernel, shared_bytes, overlaps);
    }
    return error;
  }
  static cudaError_t launch(const AttendParams& params, int blocks, int shared_bytes, bool overlaps,
                            cudaStream_t stream) {
    const int warps = params.consumers + (kNeeds[static_cast<int>(params.pages)].producer ? 1 : 0);
    const LaunchShape shape = {dim3(blocks), 32 * warps, shared_bytes, overlaps};
    return launch_kernel(kKernels[static_cast<int>(params.pages)], shape, params, stream);
  }
  static cudaError_t launch_terms(const AttendParams& params, bool overlaps, cudaStream_t stream) {
    const dim3 grid((params.room.vectors / kTileSize + kTermWarps - 1) / kTermWarps,
                    params.kv_heads * params.row_blocks, params.count);
    return launch_kernel<AttendParams>(label_terms_kernel<D, kTiles>, {grid, 32 * kTermWarps, 0, overlaps}, params,
                                       stream);
  }
  static constexpr AttendInstance value = {
      max_consumers, kPartialFloats<D, kTiles>, block_partials(), shared_bytes, prepare, launch, launch_terms};
};

}  // namespace kvasir::cuda
