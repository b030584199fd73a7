// Makes a DecodeInstance of the kernel template.
#pragma once

#include "kernels/cuda/decode_instance.h"
#include "kernels/cuda/decode_kernel.cuh"

namespace kvasir::cuda {

template <int D, int kTiles>
struct InstanceOf {
  using Kernel = void (*)(DecodeParams);
  static constexpr Kernel kAnyKind = decode_kernel<D, kTiles, true>, kPlainPages = decode_kernel<D, kTiles, false>;

  static int shared_bytes(int consumers, int slots, int cached, const DecodeShape& shape) {
    return RingPlace<D>::bytes(consumers, slots) + SharedTail<D, kTiles>::bytes(consumers, cached, shape);
  }
  static cudaError_t prepare(int shared_bytes, bool* overlaps) {
    for (const Kernel kernel : {kAnyKind, kPlainPages}) {
      cudaFuncAttributes attributes;
      cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
      if (error != cudaSuccess) return error;
      *overlaps = attributes.ptxVersion >= 90;
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  static cudaError_t launch(const DecodeParams& params, int blocks, int shared_bytes, bool overlaps,
                            cudaStream_t stream) {
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(32 * (params.consumers + 1));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = overlaps ? 1 : 0;
    return cudaLaunchKernelEx(&config, params.plain ? kPlainPages : kAnyKind, params);
  }
  static constexpr DecodeInstance value = {kMaxConsumers<D, kTiles>, kPartialFloats<D, kTiles>, shared_bytes, prepare,
                                           launch};
};

}  // namespace kvasir::cuda
