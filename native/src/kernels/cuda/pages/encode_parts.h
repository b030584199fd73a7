// The two ways to seal pages, each for the sides that it is for; encode.cc calls both.
#pragma once

#include "kernels/cuda/pages/encode.h"

namespace kvasir::cuda {

// Sides that are not fragments are kNone here.
cudaError_t encode_fragments(const EncodeRequest& request, cudaStream_t stream);

// Sides that are fragments are kNone here.
cudaError_t encode_canonical(const EncodeRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
