// Test data: deterministic, replayable from a seed, in shapes that quantisers find easy, usual and hard.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "reference/half.h"

namespace support {

// SplitMix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // 0..n-1
  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
  bool chance(double p) { return uniform() < p; }
  // [0, 1)
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

 private:
  uint64_t state_;
};

enum class Profile {
  kNormal,          // independent standard normal elements
  kOutliers,        // what real keys look like: a bias per channel, and a few channels twenty times wider
  kConstant,        // constant channels and constant tokens among normal ones
  kTwoValues,       // every channel has two values only: codes are 0 and the highest
  kMixedMagnitude,  // log-uniform from the smallest float16 subnormal to 32752: differences that float32 must round
  kTiny,            // subnormal float16 values only
  kZero,
};
constexpr Profile kProfiles[] = {Profile::kNormal,         Profile::kOutliers, Profile::kConstant, Profile::kTwoValues,
                                 Profile::kMixedMagnitude, Profile::kTiny,     Profile::kZero};

inline const char* name_of(Profile profile) {
  constexpr const char* kNames[] = {"normal", "outliers", "constant", "two values", "mixed magnitude", "tiny", "zero"};
  return kNames[static_cast<int>(profile)];
}

inline float round_to_half(double x) { return static_cast<float>(reference::half_value(reference::half_nearest(x))); }

// [tokens][width], every element a float16 value.
inline std::vector<float> make_half_rows(Profile profile, uint64_t seed, int tokens, int width) {
  Random random(seed);
  std::vector<double> bias(width), spread(width);
  std::vector<bool> constant(width);
  for (int c = 0; c < width; ++c) {
    bias[c] = 2.0 * random.normal();
    spread[c] = random.chance(0.05) ? 20.0 : 1.0;
    constant[c] = random.chance(0.4);
  }
  std::vector<float> rows(static_cast<size_t>(tokens) * width);
  for (int t = 0; t < tokens; ++t) {
    const bool constant_token = random.chance(0.2);
    for (int c = 0; c < width; ++c) {
      const double x = random.normal();
      double value = 0.0;
      switch (profile) {
        case Profile::kNormal:
          value = x;
          break;
        case Profile::kOutliers:
          value = bias[c] + spread[c] * x;
          break;
        case Profile::kConstant:
          value = constant_token ? 1.25 : constant[c] ? bias[c] : x;
          break;
        case Profile::kTwoValues:
          value = x < 0.0 ? bias[c] : bias[c] + spread[c];
          break;
        case Profile::kMixedMagnitude: {
          const double magnitude = std::exp2(-24.0 + 39.0 * random.uniform());
          value = std::copysign(std::min(magnitude, 32752.0), x);
          break;
        }
        case Profile::kTiny:
          value = std::ldexp(std::nearbyint(100.0 * x), -24);
          break;
        case Profile::kZero:
          break;
      }
      rows[static_cast<size_t>(t) * width + c] = round_to_half(value);
    }
  }
  return rows;
}

// The same, made once for each set of arguments: tests ask for the same data on every backend.
inline const std::vector<float>& half_rows(Profile profile, uint64_t seed, int tokens, int width) {
  static std::mutex mutex;
  static std::map<std::tuple<Profile, uint64_t, int, int>, std::vector<float>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<float>& rows = known[{profile, seed, tokens, width}];
  if (rows.empty()) rows = make_half_rows(profile, seed, tokens, width);
  return rows;
}

// [count][width] standard normal float32, times `scale`.
inline std::vector<float> float_rows(uint64_t seed, int count, int width, double scale = 1.0) {
  Random random(seed);
  std::vector<float> rows(static_cast<size_t>(count) * width);
  for (float& x : rows) x = static_cast<float>(scale * random.normal());
  return rows;
}

}  // namespace support
