// Products with weights in blocks, as MatrixKernels wants them.
#pragma once

#include "kernels/matrix.h"

namespace kvasir::KVASIR_LEVEL {

void block_product(const MatrixBlock& block);
void encode(const float* values, int depth, CodedPart* out);

}  // namespace kvasir::KVASIR_LEVEL
