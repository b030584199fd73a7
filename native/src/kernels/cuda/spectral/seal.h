// Seals spectral pages on the device: byte for byte what the host's kernels write. Nothing is allocated or waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/page_format.h"
#include "kernels/cuda/layout/staging.h"

namespace kvasir::cuda {

// The basis of a side, in device memory; null where there is none, and rows are their own coefficients.
struct SealBasis {
  const uint32_t* inverse;  // inverse_fragments
  const float* units;       // Basis::units, of all kv heads
};

struct SpectralSealRequest {
  PageFormat format;  // of one side
  SealBasis basis;
  Staging staging;        // part p holds rows 128 p .. 128 p + 127
  uint8_t* const* parts;  // on the host: device addresses of the side's parts, 64-byte aligned
  int64_t part_count;
};

// Whether the current device has the shared memory for it: 137 KB with 256 channels, 70 with 128.
bool seals_spectral_parts(int head_dim);

cudaError_t seal_spectral_parts(const SpectralSealRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
