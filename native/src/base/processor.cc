#include "base/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace kvasir::processor {

#if defined(__x86_64__)

namespace {

struct Answers {
  unsigned basic, extended;  // the words of leaves 1 and 7 that are of interest here
};

// Asked once: the question takes a virtual machine out to its host. Zeros where the processor does not know it.
const Answers& answers() {
  static const Answers known = [] {
    unsigned a, b, c = 0, d = 0, other;
    __get_cpuid_count(1, 0, &a, &b, &c, &other);
    __get_cpuid_count(7, 0, &a, &b, &other, &d);
    return Answers{c, d};
  }();
  return known;
}

}  // namespace

bool has_crc() { return (answers().basic & 1u << 20) != 0; }
bool has_polynomial_products() { return (answers().basic & 1u << 1) != 0; }
bool has_half_conversions() { return (answers().basic & 1u << 29) != 0; }
bool has_tiles() {
  constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25, kAll = kBfloat16 | kTiles | kInt8;
  return (answers().extended & kAll) == kAll;
}

#elif defined(__aarch64__) && defined(__APPLE__)

static bool has(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_crc() { return has("hw.optional.armv8_crc32"); }
bool has_polynomial_products() { return has("hw.optional.arm.FEAT_PMULL"); }
bool has_dot_products() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_matrix_products() { return has("hw.optional.arm.FEAT_I8MM"); }

#elif defined(__aarch64__)

bool has_crc() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
bool has_polynomial_products() { return (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0; }
bool has_dot_products() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
bool has_matrix_products() { return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }

#endif

}  // namespace kvasir::processor
