// Loops of one kind of instruction each, by level, with everything in registers or the first cache. A call takes some
// milliseconds and returns how many elements it worked on.
#pragma once

#include <cstdint>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace bench {

constexpr int kLoops = 2000000;

struct InstructionLoops {
  double (*byte_products)() = nullptr;
  double (*float_products)() = nullptr;
  double (*short_additions)() = nullptr;
};

// Makes the compiler believe that every register of an array changed: what it holds cannot be computed in advance.
#if defined(__x86_64__)
#define BENCH_KEEP(registers) \
  for (auto& each : registers) asm volatile("" : "+v"(each))
#define BENCH_KEEP_AVX2(registers) \
  for (auto& each : registers) asm volatile("" : "+x"(each))

namespace avx512 {

constexpr int kRegisters = 16;  // enough to hide latency

__attribute__((target("avx512f,avx512bw,avx512vnni"))) inline double byte_products() {
  __m512i sums[kRegisters] = {}, codes = _mm512_set1_epi8(1), factors = _mm512_set1_epi8(2);
  for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < kRegisters; ++r) sums[r] = _mm512_dpbusd_epi32(sums[r], codes, factors);
    BENCH_KEEP(sums);
  }
  return 64.0 * kRegisters * kLoops;
}

__attribute__((target("avx512f"))) inline double float_products() {
  __m512 sums[kRegisters] = {}, a = _mm512_set1_ps(0.5f);
  for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < kRegisters; ++r) sums[r] = _mm512_fmadd_ps(sums[r], a, a);
    BENCH_KEEP(sums);
  }
  return 16.0 * kRegisters * kLoops;
}

__attribute__((target("avx512f,avx512bw"))) inline double short_additions() {
  alignas(64) int16_t rows[kRegisters * 32];
  for (int i = 0; i < kRegisters * 32; ++i) rows[i] = static_cast<int16_t>(i);
  __m512i sums[kRegisters] = {};
  for (int i = 0; i < kLoops; ++i) {
    asm volatile("" : : "r"(rows) : "memory");
#pragma GCC unroll 16
    for (int r = 0; r < kRegisters; ++r) sums[r] = _mm512_add_epi16(sums[r], _mm512_load_si512(rows + 32 * r));
    BENCH_KEEP(sums);
  }
  return 32.0 * kRegisters * kLoops;
}

}  // namespace avx512

namespace avx2 {

// As the kernels do it: four products of bytes to 16 bits, their sums, then to 32 bits.
__attribute__((target("avx2"))) inline double byte_products() {
  constexpr int kSums = 3;
  __m256i sums[kSums] = {}, codes[4] = {}, ones = _mm256_set1_epi16(1), factors = _mm256_set1_epi8(2);
  for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 3
    for (int r = 0; r < kSums; ++r) {
      const __m256i ab =
          _mm256_add_epi16(_mm256_maddubs_epi16(codes[0], factors), _mm256_maddubs_epi16(codes[1], factors));
      const __m256i cd =
          _mm256_add_epi16(_mm256_maddubs_epi16(codes[2], factors), _mm256_maddubs_epi16(codes[3], factors));
      sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(_mm256_add_epi16(ab, cd), ones));
      BENCH_KEEP_AVX2(codes);
    }
  }
  BENCH_KEEP_AVX2(sums);
  return 128.0 * kSums * kLoops;
}

__attribute__((target("avx2,fma"))) inline double float_products() {
  constexpr int kSums = 10;
  __m256 sums[kSums] = {}, a = _mm256_set1_ps(0.5f);
  for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 10
    for (int r = 0; r < kSums; ++r) sums[r] = _mm256_fmadd_ps(sums[r], a, a);
    BENCH_KEEP_AVX2(sums);
  }
  return 8.0 * kSums * kLoops;
}

__attribute__((target("avx2"))) inline double short_additions() {
  constexpr int kSums = 8;
  alignas(32) int16_t rows[kSums * 16];
  for (int i = 0; i < kSums * 16; ++i) rows[i] = static_cast<int16_t>(i);
  __m256i sums[kSums] = {};
  for (int i = 0; i < kLoops; ++i) {
    asm volatile("" : : "r"(rows) : "memory");
#pragma GCC unroll 8
    for (int r = 0; r < kSums; ++r) {
      sums[r] = _mm256_add_epi16(sums[r], _mm256_load_si256(reinterpret_cast<const __m256i*>(rows) + r));
    }
    BENCH_KEEP_AVX2(sums);
  }
  return 16.0 * kSums * kLoops;
}

}  // namespace avx2
#elif defined(__aarch64__)
#define BENCH_KEEP(registers) \
  for (auto& each : registers) asm volatile("" : "+w"(each))

namespace neon {

constexpr int kRegisters = 16;

// As the kernels do it without an instruction for it: products of bytes added to 16 bits, four times, then to 32 bits.
inline double byte_products() {
  constexpr int kSums = 6;
  int32x4_t sums[kSums] = {};
  int8x16_t codes[4] = {};
  const int8x16_t factors = vdupq_n_s8(2);
  for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 6
    for (int r = 0; r < kSums; ++r) {
      int16x8_t low = vmull_s8(vget_low_s8(codes[0]), vget_low_s8(factors)), high = vmull_high_s8(codes[0], factors);
#pragma GCC unroll 3
      for (int step = 1; step < 4; ++step) {
        low = vmlal_s8(low, vget_low_s8(codes[step]), vget_low_s8(factors));
        high = vmlal_high_s8(high, codes[step], factors);
      }
      sums[r] = vpadalq_s16(sums[r], vpaddq_s16(low, high));
      BENCH_KEEP(codes);
    }
  }
  BENCH_KEEP(sums);
  return 64.0 * kSums * kLoops;
}

__attribute__((target("arch=armv8.2-a+dotprod"))) inline double byte_dot_products() {
  int32x4_t sums[kRegisters] = {};
  const int8x16_t codes = vdupq_n_s8(1), factors = vdupq_n_s8(2);
  for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < kRegisters; ++r) sums[r] = vdotq_s32(sums[r], codes, factors);
    BENCH_KEEP(sums);
  }
  return 16.0 * kRegisters * kLoops;
}

__attribute__((target("arch=armv8.2-a+i8mm"))) inline double byte_matrix_products() {
  int32x4_t sums[kRegisters] = {};
  const int8x16_t codes = vdupq_n_s8(1), factors = vdupq_n_s8(2);
  for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < kRegisters; ++r) sums[r] = vmmlaq_s32(sums[r], codes, factors);
    BENCH_KEEP(sums);
  }
  return 32.0 * kRegisters * kLoops;
}

inline double float_products() {
  float32x4_t sums[kRegisters] = {}, a = vdupq_n_f32(0.5f);
  for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < kRegisters; ++r) sums[r] = vfmaq_f32(sums[r], sums[r], a);
    BENCH_KEEP(sums);
  }
  return 4.0 * kRegisters * kLoops;
}

inline double short_additions() {
  alignas(16) int16_t rows[kRegisters * 8];
  for (int i = 0; i < kRegisters * 8; ++i) rows[i] = static_cast<int16_t>(i);
  int16x8_t sums[kRegisters] = {};
  for (int i = 0; i < kLoops; ++i) {
    asm volatile("" : : "r"(rows) : "memory");
#pragma GCC unroll 16
    for (int r = 0; r < kRegisters; ++r) sums[r] = vaddq_s16(sums[r], vld1q_s16(rows + 8 * r));
    BENCH_KEEP(sums);
  }
  return 8.0 * kRegisters * kLoops;
}

}  // namespace neon
#endif

// Nothing for levels without vectors.
inline InstructionLoops instruction_loops(const std::string& backend) {
#if defined(__x86_64__)
  if (backend == "avx512") return {avx512::byte_products, avx512::float_products, avx512::short_additions};
  if (backend == "avx2") return {avx2::byte_products, avx2::float_products, avx2::short_additions};
#elif defined(__aarch64__)
  if (backend == "neon_i8mm") return {neon::byte_matrix_products, neon::float_products, neon::short_additions};
  if (backend == "neon_dotprod") return {neon::byte_dot_products, neon::float_products, neon::short_additions};
  if (backend == "neon") return {neon::byte_products, neon::float_products, neon::short_additions};
#endif
  (void)backend;
  return {};
}

#undef BENCH_KEEP
#undef BENCH_KEEP_AVX2

}  // namespace bench
