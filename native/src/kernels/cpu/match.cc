#include "kernels/cpu/cpu.h"
#include "kernels/match_inl.h"

namespace kvasir::KVASIR_LEVEL {

const MatchKernels match_kernels = kMatchKernels;

}  // namespace kvasir::KVASIR_LEVEL
