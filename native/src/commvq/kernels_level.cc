// Compiled once per level, with its flags: see add_level in CMakeLists.txt.
#include "commvq/kernels_inl.h"

namespace kvasir::KVASIR_LEVEL {

extern const commvq::Kernels codebook_kernels;
const commvq::Kernels codebook_kernels = commvq::kKernels;

}  // namespace kvasir::KVASIR_LEVEL
