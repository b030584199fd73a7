// Seals spectral pages on the device: byte for byte what the host's kernels write. Nothing is allocated or waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/page_format.h"
#include "kernels/cuda/layout/staging.h"

namespace kvasir::cuda {

struct SpectralSealRequest {
  PageFormat format;      // of one side
  const float* inverse;   // of the basis, [kv_heads][head_dim][head_dim] in device memory; null: there is none
  Staging staging;        // part p holds rows 128 p .. 128 p + 127
  uint8_t* const* parts;  // on the host: device addresses of the side's parts, 64-byte aligned
  int64_t part_count;
};

cudaError_t seal_spectral_parts(const SpectralSealRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
