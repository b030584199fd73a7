#include "kernels/codebook_inl.h"
#include "kernels/cpu/cpu.h"

namespace kvasir::KVASIR_LEVEL {

const CodebookKernels codebook_kernels = codebook::kKernels;

}  // namespace kvasir::KVASIR_LEVEL
