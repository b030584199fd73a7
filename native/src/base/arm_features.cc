#include "base/arm_features.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#else
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace kvasir::arm {

#if defined(__APPLE__)

static bool has(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_crc() { return has("hw.optional.armv8_crc32"); }
bool has_polynomial_products() { return has("hw.optional.arm.FEAT_PMULL"); }
bool has_dot_products() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_matrix_products() { return has("hw.optional.arm.FEAT_I8MM"); }

#else

bool has_crc() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
bool has_polynomial_products() { return (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0; }
bool has_dot_products() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
bool has_matrix_products() { return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }

#endif

}  // namespace kvasir::arm
