// Which channel gets how many bits.
//
// The saliency of a channel is what 2 bits would cost the logits: A = I * S, with I the mean magnitude of the queries
// in the channel and S = range / 3 the step of its 2-bit codes, range over the page. Two limits cut the channels into
// tiers: above the first 16 bits, above the second 4, else 2.
//
// BUDGET finds the limits. A channel's squared error falls from A^2 to (A/5)^2 with 2 more bits and from there to 0
// with 12 more, in units that all channels share: gains per bit of 0.48 A^2 and A^2 / 300. To spend bits where they
// gain most is to take every step whose gain per bit is above some value, hence 4 bits above some limit a, and 16 bits
// above 12 a.
//
// All in float32 and double operations in exactly this order: backends must choose alike. Plain loops, no library code:
// kernels of all instruction sets include this.
#pragma once

#include <cstdint>
#include <cstring>

#include "codecs/tiered/format.h"

namespace kvasir::tiered {

// 16-bit over 4-bit limit where both gain the same per bit: sqrt(0.48 * 300).
constexpr float kLimitRatio = 12.0f;

struct Tiers {
  int n16;
  int n4;
  uint8_t width[kMaxHeadDim];  // 16, 4 or 2, by channel
};

// The channel of highest or lowest saliency among those of a width, the first among equals.
static inline int extreme_of_width(const Tiers& tiers, int width, const float* saliency, int d, bool highest) {
  int found = -1;
  for (int j = 0; j < d; ++j) {
    if (tiers.width[j] != width) continue;
    if (found < 0 || (highest ? saliency[j] > saliency[found] : saliency[j] < saliency[found])) found = j;
  }
  return found;
}

static inline int count_above(const float* saliency, int d, float limit) {
  int count = 0;
  for (int j = 0; j < d; ++j) count += saliency[j] > limit;
  return count;
}

static inline void cut(const float* saliency, int d, double limit16, double limit4, Tiers& tiers) {
  tiers.n16 = tiers.n4 = 0;
  for (int j = 0; j < d; ++j) {
    const bool is16 = static_cast<double>(saliency[j]) > limit16;
    const bool is4 = !is16 && static_cast<double>(saliency[j]) > limit4;
    tiers.width[j] = is16 ? 16 : is4 ? 4 : 2;
    tiers.n16 += is16;
    tiers.n4 += is4;
  }
}

KVASIR_HOST_DEVICE static inline int code_bits(int d, int n16, int n4) {
  return 16 * n16 + 4 * n4 + 2 * (d - n16 - n4);
}

// Magnitudes of floats are ordered like their bits.
static inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline void cut_by_budget(const float* saliency, int d, float mean_bits, Tiers& tiers) {
  const float target = mean_bits * static_cast<float>(d);
  // The lowest limit that keeps to the target, to the last bit.
  uint32_t low = 0, high = 0x7f800000;  // 0 .. infinity
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const float limit = float_of(middle);
    const int n16 = count_above(saliency, d, kLimitRatio * limit);
    const int n4 = count_above(saliency, d, limit) - n16;
    if (static_cast<float>(code_bits(d, n16, n4)) <= target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const float limit = float_of(low);
  cut(saliency, d, static_cast<double>(kLimitRatio * limit), static_cast<double>(limit), tiers);
  // What is left pays for smaller steps than the next best one, or for some of several that are equally good.
  while (tiers.n16 + tiers.n4 < d && static_cast<float>(code_bits(d, tiers.n16, tiers.n4 + 1)) <= target) {
    const int next = extreme_of_width(tiers, 2, saliency, d, true);
    if (!(saliency[next] > 0.0f)) break;
    tiers.width[next] = 4;
    ++tiers.n4;
  }
  const int n2 = d - tiers.n16 - tiers.n4;
  const int next = n2 == 0 ? extreme_of_width(tiers, 4, saliency, d, true) : -1;
  if (next >= 0 && static_cast<float>(code_bits(d, tiers.n16, tiers.n4) + 6) <= target) {
    // Only steps of 12 bits are left: to the nearest.
    tiers.width[next] = 16;
    ++tiers.n16;
    --tiers.n4;
  } else if (n2 > 0 && tiers.n4 % kColumnsPerVector == 1) {
    // To the nearest whole number of vectors: one channel too many is given up, more are made up by the caller.
    tiers.width[extreme_of_width(tiers, 4, saliency, d, false)] = 2;
    --tiers.n4;
  }
}

// range: of each channel over the page. importance: mean magnitudes of the queries.
static inline void choose_tiers(const PageFormat& format, const float* range, const float* importance, Tiers& tiers) {
  const int d = format.head_dim;
  const bool queries = goes_by_queries(format);
  float saliency[kMaxHeadDim];
  for (int j = 0; j < d; ++j) {
    const float step = range[j] / 3.0f;
    saliency[j] = queries ? importance[j] * step : step;
  }
  const Mode mode = mode_of(format);
  if (mode == kBudget) {
    cut_by_budget(saliency, d, format.numbers[kKeyBits], tiers);
  } else {
    double sum = 0.0;
    for (int j = 0; j < d; ++j) sum += static_cast<double>(saliency[j]);
    const double unit = mode == kNormalised ? sum / d : 1.0;
    cut(saliency, d, static_cast<double>(format.numbers[kTau16]) * unit,
        static_cast<double>(format.numbers[kTau4]) * unit, tiers);
  }
  // The rest of the last vector would be stored anyway: the next best channels get it.
  while (tiers.n4 % kColumnsPerVector != 0 && tiers.n16 + tiers.n4 < d) {
    tiers.width[extreme_of_width(tiers, 2, saliency, d, true)] = 4;
    ++tiers.n4;
  }
}

}  // namespace kvasir::tiered
