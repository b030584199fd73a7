// Store-and-read-back of one group of elements: what calibration measures the loss of.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "base/checks.h"
#include "base/half.h"
#include "codecs/uniform/formula.h"

namespace kvasir::calibrate {

// Room for the elements of a group: a page's tokens or a head's channels.
constexpr int kMaxGroup = 256;

inline void require_width(int bits) {
  if (bits < 1 || bits > 16) refuse("bits is " + std::to_string(bits) + ", not 1..16");
}

// The elements that share parameters along a dimension, as the codec "uniform" takes them; 0 for the longest up to 128.
inline int group_of(int group, int dimension) {
  if (group != 0 && group != 32 && group != 64 && group != 128 && group != dimension) {
    refuse("group is " + std::to_string(group) + ", not 0, 32, 64, 128 or the whole dimension (" +
           std::to_string(dimension) + ")");
  }
  const int wanted = group == 0 ? 128 : group;
  return wanted < dimension ? wanted : dimension;
}

// An element as append stores it; at most kMaxMagnitude.
inline float stored_value(float x) { return half_to_float(float_to_half(x)); }

// kNotFinite for one element of `what`, which is [tokens][heads][head_dim] of a layer that only the caller knows.
// `input` is what programs are told of it: "keys", "values", "queries", or empty.
inline Error not_finite(const std::string& what, const std::string& input, int heads, int head_dim, int64_t index,
                        float value) {
  const std::string token = std::to_string(index / head_dim / heads);
  const std::string head = std::to_string(index / head_dim % heads);
  const std::string channel = std::to_string(index % head_dim);
  const std::string text =
      what + " hold " + float_text(value) + " at token " + token + ", head " + head + ", channel " + channel;
  const std::string numbers =
      "token=" + token + " head=" + head + " channel=" + channel + " value=" + float_text(value);
  return Error(ErrorCode::kNotFinite, text, input.empty() ? numbers : "input=" + input + " " + numbers);
}

// What one group is stored with, for any width.
struct Group {
  float lo, range;

  // values: float16 values.
  Group(const float* values, int count) {
    float lowest = values[0], highest = values[0];
    for (int i = 1; i < count; ++i) {
      lowest = values[i] < lowest ? values[i] : lowest;
      highest = values[i] > highest ? values[i] : highest;
    }
    const uniform::Parameters parameters = uniform::parameters_of(lowest, highest);
    lo = half_to_float(parameters.lo);
    range = half_to_float(parameters.range);
  }
};

// A group at one width.
struct Quantiser {
  uniform::Codes codes;
  float lo, inverse_step, step, base;

  Quantiser(const Group& group, int bits, Grid grid)
      : codes(uniform::codes_of(bits, grid)),
        lo(group.lo),
        inverse_step(uniform::inverse_step(group.range, codes)),
        step(uniform::step_of(group.range, codes)),
        base(uniform::base_of(lo, step, codes)) {}

  float operator()(float x) const {
    return uniform::decode_element(uniform::encode_element(x, lo, inverse_step, codes), base, step);
  }
};

}  // namespace kvasir::calibrate
