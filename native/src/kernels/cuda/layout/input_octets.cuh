// Eight neighbouring channels of one row, and those of rows that callers append: checked, scaled and rounded on the
// way.
#pragma once

#include "kernels/cuda/layout/input_rows.h"
#include "kernels/cuda/primitives/numbers.cuh"

namespace kvasir::cuda {

constexpr int kOctet = 8;

// Float16 bits, two channels a word.
struct Octet {
  uint32_t words[4];
};

// Which octet: `token` counts from the first row of the move.
struct RowPlace {
  int side;
  int64_t token;
  int head;
  int channel;  // a multiple of 8
};

// NaN is not.
__device__ __forceinline__ bool acceptable(float x) { return fabsf(x) <= kMaxMagnitude; }

// Rows from token `first` on. load gives an octet as it is stored; fetch, and then round or checked, are the same for
// those who load many octets before they use one.
struct InputSource {
  InputRows rows;  // with strides
  RowShape shape;
  int64_t first;

  static InputSource of(const RowShape& shape, const InputRows& rows, int64_t first) {
    return {rows.with_strides(shape), shape, first};
  }

  __device__ bool has(int) const { return true; }
  __device__ Octet load(const RowPlace& at) const {
    float x[kOctet];  // one way from here on: instructions come from far away
    if (wide(at.side)) {
      to_floats(fetch<2>(at), x);
    } else {
      to_floats(fetch<1>(at), rows.types[at.side], x);
    }
    return checked(at, x);
  }

  __device__ bool wide(int side) const { return rows.types[side] == ElementType::kFloat32; }
  __device__ bool scaled(int side) const { return side == 0 && rows.key_scaling != nullptr; }

  // An octet as it lies there: one vector, or two of float32.
  template <int kVectors>
  struct Raw {
    uint4 vectors[kVectors];
  };
  template <int kVectors>
  __device__ __forceinline__ Raw<kVectors> fetch(const RowPlace& at) const {
    constexpr int kElementBytes = 2 * kVectors;
    const int64_t index =
        (first + at.token) * rows.token_strides[at.side] + at.head * rows.head_strides[at.side] + at.channel;
    const auto* const from = static_cast<const uint8_t*>(rows.sides[at.side]) + index * kElementBytes;
    Raw<kVectors> raw;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) raw.vectors[i] = reinterpret_cast<const uint4*>(from)[i];
    return raw;
  }

  // Rounds where nothing is scaled; false where an element is not acceptable.
  __device__ __forceinline__ static bool round(const Raw<2>& raw, ElementType, Octet* octet) {
    float x[kOctet];
    to_floats(raw, x);
    float most = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < kOctet; ++i) asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(x[i])));
    *octet = halves_of(x);
    return acceptable(most);
  }
  // Of 16-bit numbers none lies between kMaxMagnitude and what is rounded down to it.
  __device__ __forceinline__ static bool round(const Raw<1>& raw, ElementType type, Octet* octet) {
    const uint4& v = raw.vectors[0];
    *octet = {{v.x, v.y, v.z, v.w}};
    if (type == ElementType::kBFloat16) {
      float x[kOctet];
      to_floats(raw, type, x);
      *octet = halves_of(x);
    }
    const __half2 a = __hmax2_nan(__habs2(as_halves(octet->words[0])), __habs2(as_halves(octet->words[1])));
    const __half2 b = __hmax2_nan(__habs2(as_halves(octet->words[2])), __habs2(as_halves(octet->words[3])));
    return __hble2(__hmax2_nan(a, b), __float2half2_rn(kMaxMagnitude));
  }

  // Scales and rounds; elements that are not acceptable become 0, and are reported.
  __device__ __forceinline__ Octet checked(const RowPlace& at, const Raw<1>& raw) const {
    float x[kOctet];
    to_floats(raw, rows.types[at.side], x);
    return checked(at, x);
  }
  __device__ __forceinline__ Octet checked(const RowPlace& at, const Raw<2>& raw) const {
    float x[kOctet];
    to_floats(raw, x);
    return checked(at, x);
  }

 private:
  __device__ __forceinline__ Octet checked(const RowPlace& at, float (&x)[kOctet]) const {
    bool fine = true;
    float factors[kOctet];
    if (scaled(at.side)) {
      const int64_t factor = static_cast<int64_t>(at.head) * shape.head_dim + at.channel;
      const auto* const vectors = reinterpret_cast<const uint4*>(rows.key_scaling + factor);
      to_floats(Raw<2>{{vectors[0], vectors[1]}}, factors);
    }
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      bool good = acceptable(x[i]);
      if (scaled(at.side)) {
        x[i] = __fdiv_rn(x[i], factors[i]);
        good &= acceptable(x[i]);
      }
      if (!good) x[i] = 0.0f;
      fine &= good;
    }
    // All that store here store the same.
    if (!fine) *static_cast<volatile uint32_t*>(rows.refused + at.side) = 1;
    return halves_of(x);
  }
  static __device__ __forceinline__ Octet halves_of(const float (&x)[kOctet]) {
    return {{floats_to_halves(x[0], x[1]), floats_to_halves(x[2], x[3]), floats_to_halves(x[4], x[5]),
             floats_to_halves(x[6], x[7])}};
  }
  static __device__ __forceinline__ void to_floats(const Raw<2>& raw, float (&x)[kOctet]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[4 * i] = __uint_as_float(raw.vectors[i].x);
      x[4 * i + 1] = __uint_as_float(raw.vectors[i].y);
      x[4 * i + 2] = __uint_as_float(raw.vectors[i].z);
      x[4 * i + 3] = __uint_as_float(raw.vectors[i].w);
    }
  }
  static __device__ __forceinline__ void to_floats(const Raw<1>& raw, ElementType type, float (&x)[kOctet]) {
    const uint4& vector = raw.vectors[0];
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = numbers_of(words[i], type);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
};

}  // namespace kvasir::cuda
