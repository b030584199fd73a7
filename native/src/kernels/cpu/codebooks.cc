#include "kernels/codebook_inl.h"
#include "kernels/cpu/cpu.h"

namespace kvasir::KVASIR_LEVEL {

const CodebookKernels codebook_kernels = commvq::kCodebookKernels;

}  // namespace kvasir::KVASIR_LEVEL
