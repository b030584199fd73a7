// What the sources of one level show each other: the tables of verbs that make up its backend.
#pragma once

#include "kernels/kernels.h"

namespace kvasir::KVASIR_LEVEL {

extern const RowKernels row_kernels;
extern const MatchKernels match_kernels;
extern const MatrixKernels matrix_kernels;
extern const CodebookKernels codebook_kernels;
extern const Backend backend;

#define CODEC(name) extern const CodecKernels name##_kernels;
#include "codecs/codecs.def"
#undef CODEC

}  // namespace kvasir::KVASIR_LEVEL
