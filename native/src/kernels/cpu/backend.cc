#include "base/processor.h"
#include "kernels/cpu/cpu.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

constexpr const CodecKernels* kCodecs[] = {
#define CODEC(name) &name##_kernels,
#include "codecs/codecs.def"
#undef CODEC
};

// Runs on machines without this level: nothing here may be worth a vector instruction.
#if defined(__AVX512VNNI__)
constexpr char kName[] = "avx512";
constexpr char kSummary[] = "x86-64 with AVX-512 F, BW, VL, DQ and VNNI: 512-bit vectors, byte dot products";
bool available() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         processor::has_half_conversions();
}
#elif defined(__AVX2__)
constexpr char kName[] = "avx2";
constexpr char kSummary[] = "x86-64 with AVX2, FMA and F16C: 256-bit vectors";
bool available() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && processor::has_half_conversions();
}
#elif defined(__ARM_FEATURE_MATMUL_INT8)
constexpr char kName[] = "neon_i8mm";
constexpr char kSummary[] = "AArch64 with the 8-bit matrix and dot product extensions (ARMv8.6): 128-bit vectors";
bool available() { return processor::has_dot_products() && processor::has_matrix_products(); }
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr char kName[] = "neon_dotprod";
constexpr char kSummary[] = "AArch64 with the dot product extension (ARMv8.2): 128-bit vectors, byte dot products";
bool available() { return processor::has_dot_products(); }
#else
constexpr char kName[] = "neon";
constexpr char kSummary[] = "any AArch64 (ARMv8.0): 128-bit vectors";
bool available() { return true; }
#endif

}  // namespace

const Backend backend = {kName,   kSummary,       available,       &row_kernels,
                         kCodecs, &match_kernels, &matrix_kernels, &codebook_kernels};

}  // namespace kvasir::KVASIR_LEVEL
