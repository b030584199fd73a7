// Random numbers that are a function of what they are for: no state, so no order of calls to keep.
#pragma once

#include <cstdint>

namespace kvasir::commvq {

// SplitMix64's mixing of a counter.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A number for (seed, a, b, c); any change of one of them gives an unrelated one.
inline uint64_t random_bits(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  return mix(mix(mix(mix(seed) ^ a) ^ b) ^ c);
}

// In (0, 1), from 53 of the bits.
inline double unit_interval(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

}  // namespace kvasir::commvq
