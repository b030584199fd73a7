// Products with codebooks and with the layers of encoders.
#pragma once

#include <cstdint>

#include "base/codebook.h"

namespace kvasir::commvq {

// out[m][n] = sum over k of a[m][k] * b[n][k] + bias[n], in float32, on the library's threads; a row of `out` does not
// depend on the rows beside it, nor on the number of threads, nor on the level of the CPU: where that is not needed,
// matrix_product (kvasir/matrix.h) is faster. bias may be null.
void multiply(const CodebookKernels& kernels, const float* a, int64_t rows, const float* b, int columns, int depth,
              const float* bias, float* out);

}  // namespace kvasir::commvq
