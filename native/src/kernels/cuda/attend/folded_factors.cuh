// Folds parameters into the factors that multiply codes, and quantises the products to B fragments.
//
// A lane (g = lane / 4, h = lane % 4) holds the factors of head h at x = g, g + 8, g + 16, ...: queries where x is a
// channel, softmax weights where x is a token. With element = base + code * step,
//
//   sum over x of factor * element = sum of factor * base  +  sum of (factor * step) * code
//
// where base = lo + centre * range and step are what uniform::Codes says: which grid codes are of costs nothing beyond
// one operation for each pair of parameters.
//
// The products are scaled to 16 bits and split into two bytes, value = 256 * high + low. The high bytes of head h
// become column 2h of B and the low bytes column 2h + 1, so that the lane that holds column pair h of C finds both sums
// of a head.
#pragma once

#include "kernels/cuda/attend/ring.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/primitives/rounding.h"

namespace kvasir::cuda {

// Largest magnitude of a quantised product: a little below the limit, because the scale is a rounded reciprocal.
// Signed: 32767 less the 128 that the split into a signed low byte needs. Unsigned: 65535.
template <bool kSigned>
constexpr float kQuantum = kSigned ? 32636.0f : 65532.0f;

// What leaves a product that is added in the low bits. A signed low byte is value - 128 after adding 128 to the whole;
// flipping its top bit subtracts it again.
template <bool kSigned>
constexpr float kQuantumBias = kRoundingBias + (kSigned ? 128.0f : 0.0f);

// B fragment of the x of two products, which are at most kQuantum in magnitude. A bias that is a power of two times
// kQuantumBias counts them in units of that power of two.
template <bool kSigned>
__device__ __forceinline__ uint32_t quantised_products(float2 first, float2 second,
                                                       float bias = kQuantumBias<kSigned>) {
  const uint32_t even = __float_as_uint(fmaf(first.x, first.y, bias));
  const uint32_t odd = __float_as_uint(fmaf(second.x, second.y, bias));
  uint32_t row = __byte_perm(even, odd, 0x4051);  // high bytes of both, low bytes of both
  if constexpr (kSigned) row ^= 0x80800000u;
  return transpose(row);
}

// The same for two factors that are to be scaled.
template <bool kSigned>
__device__ __forceinline__ uint32_t quantised_pair(float first, float second, float scale) {
  return quantised_products<kSigned>({first, scale}, {second, scale});
}

// 256 * high + low: the sum that the two bytes of each factor stand for.
__device__ __forceinline__ float joined(int high, int low) { return __int2float_rn(high * 256 + low); }

template <int kTiles, int kCount>
struct Folded {
  uint32_t fragments[kTiles][kCount / 2];  // of all steps of 32 x
  float scale[kTiles];                     // of the integer sums, for parameters in units of `range`
  float zero[kTiles];                      // this lane's share of the sum of factor * base
};

// kCount: x per lane. four(n, i): factors 4 i .. 4 i + 3 of heads 4 n + h. centre: of code 0, as a part of the range.
template <bool kSigned, int kTiles, int kCount, class AnyReader, class Four>
__device__ __forceinline__ void fold_fours(AnyReader& reader, float centre, const Four& four,
                                           Folded<kTiles, kCount>& folded) {
  float products[kTiles][kCount];
  float peak[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) folded.zero[n] = peak[n] = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const uint4 loaded = reader.parameters(i / 4);
    const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    float factors[kTiles][4];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float4 some = four(n, i / 4);
      factors[n][0] = some.x, factors[n][1] = some.y, factors[n][2] = some.z, factors[n][3] = some.w;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 parameters = halves_to_floats(words[j]);  // range, lo
      const float base = fmaf(parameters.x, centre, parameters.y);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float factor = factors[n][j];
        products[n][i + j] = factor * parameters.x;
        peak[n] = fmaxf(peak[n], fabsf(products[n][i + j]));
        folded.zero[n] = fmaf(factor, base, folded.zero[n]);
      }
    }
  }
  reader.skip_parameters(kCount * 32);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float highest = max_over_rows(peak[n]);
    const float inverse = highest > kLeastPeak ? __fdividef(kQuantum<kSigned>, highest) : 0.0f;
    folded.scale[n] = highest * (1.0f / kQuantum<kSigned>);
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      folded.fragments[n][i / 2] = quantised_pair<kSigned>(products[n][i], products[n][i + 1], inverse);
    }
  }
}

// factors: [heads / 4][kCount].
template <bool kSigned, int kTiles, int kCount, class AnyReader>
__device__ __forceinline__ void fold(AnyReader& reader, float centre, const float (&factors)[kTiles][kCount],
                                     Folded<kTiles, kCount>& folded) {
  fold_fours<kSigned>(
      reader, centre,
      [&](int n, int i) {
        return make_float4(factors[n][4 * i], factors[n][4 * i + 1], factors[n][4 * i + 2], factors[n][4 * i + 3]);
      },
      folded);
}

// The same for float16 elements, which have no parameters: a factor becomes a float16 (column 2h) and what it lacks
// (column 2h + 1). Factors are at most 1 in magnitude. One fragment register covers 8 x.
__device__ __forceinline__ uint32_t split_halves(float factor) {
  const float high = halves_to_floats(floats_to_halves(factor, 0.0f)).x;
  return transpose(floats_to_halves(factor, factor - high));
}

}  // namespace kvasir::cuda
