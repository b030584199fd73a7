// The scalar backend: plain loops over each codec's formula.h. Always built, and what the others are compared with.
#pragma once

#include "kernels/kernels.h"

namespace kvasir::scalar {

extern const RowKernels row_kernels;
extern const MatrixKernels matrix_kernels;
extern const Backend backend;

#define CODEC(name) extern const CodecKernels name##_kernels;
#include "codecs/codecs.def"
#undef CODEC

}  // namespace kvasir::scalar
