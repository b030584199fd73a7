// The lowest level, and the choice among all. KVASIR_LEVELS comes from the build: LEVEL(avx512) LEVEL(avx2), ...
#include "commvq/kernels.h"

#include <string>

#include "commvq/kernels_inl.h"
#include "kernels/kernels.h"

namespace kvasir {

#define LEVEL(level)                             \
  namespace level {                              \
  extern const commvq::Kernels codebook_kernels; \
  }
KVASIR_LEVELS
#undef LEVEL

namespace commvq {
namespace {

struct Named {
  const char* name;
  const Kernels* kernels;
};
constexpr Named kLevels[] = {
#define LEVEL(level) {#level, &level::codebook_kernels},
    KVASIR_LEVELS
#undef LEVEL
    {"scalar", &kKernels},
};

}  // namespace

const Kernels& kernels(const char* backend) {
  // A backend without verbs of its own here, such as a GPU, is served by the best level of the CPU.
  for (int i = backend_index(backend); i < backend_list_size(); ++i) {
    for (const Named& level : kLevels) {
      if (std::string(level.name) == backend_at(i).name && backend_at(i).available()) return *level.kernels;
    }
  }
  return kKernels;
}

const Kernels& kernels() { return kernels("auto"); }

}  // namespace commvq
}  // namespace kvasir
