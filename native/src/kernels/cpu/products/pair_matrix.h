// Products with weights in bfloat16 and activations as pairs of it, as MatrixKernels wants them: where tiles of
// bfloat16 are.
#pragma once

#include "kernels/matrix.h"

namespace kvasir::KVASIR_LEVEL {

void pair_product(const MatrixBlock& block);
void split(const float* values, int64_t depth, uint16_t* out);

}  // namespace kvasir::KVASIR_LEVEL
