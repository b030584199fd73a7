// Weights times bits on Hopper (values.cu), with products of warp groups.
#pragma once

#include "kernels/cuda/commvq/params.h"

namespace kvasir::cuda {

cudaError_t prepare_hopper_values(bool* overlaps);
cudaError_t launch_hopper_values(const CommVqParams& params, int blocks, cudaStream_t stream);

}  // namespace kvasir::cuda
