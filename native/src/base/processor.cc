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

struct Answer {
  unsigned a, b, c, d;
};

// Zeros where the processor does not know the question.
Answer ask(unsigned leaf) {
  Answer answer{};
  __get_cpuid_count(leaf, 0, &answer.a, &answer.b, &answer.c, &answer.d);
  return answer;
}

}  // namespace

bool has_crc() { return (ask(1).c & 1u << 20) != 0; }
bool has_polynomial_products() { return (ask(1).c & 1u << 1) != 0; }
bool has_half_conversions() { return (ask(1).c & 1u << 29) != 0; }
bool has_tiles() {
  constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25, kAll = kBfloat16 | kTiles | kInt8;
  return (ask(7).d & kAll) == kAll;
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
