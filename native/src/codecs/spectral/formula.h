// The arithmetic of the spectral codec: norms, widths, steps.
//
// A row x of a head becomes z = (x / norm) T, with T the inverse of the layer's basis; a page then stores each channel
// of z with a width of its own. Norms and steps are powers of two in eighths, so that they take a byte each.
//
// Whole numbers, and float32 operations in exactly this order: all backends must produce the same bytes. Plain loops,
// no library code: kernels of all instruction sets include this.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "base/host_device.h"
#include "codecs/row_numbers.h"
#include "codecs/spectral/format.h"

namespace kvasir::spectral {

// Of a row over its norm: that is at worst 2^(1/16) times too small, or 65504 / 2^15.875 at the top of its range.
using kvasir::row_bits;
using kvasir::row_number;
using kvasir::row_scale;

// 2^(i / 8), for 0 <= i < 8, to the nearest float; and what lies half way between two of them, or two quarters.
// Functions, because device code sees no tables of the host.
KVASIR_HOST_DEVICE constexpr float eighth(int i) {
  constexpr float kOf[8] = {1.0f,        1.09050775f, 1.18920708f, 1.29683959f,
                            1.41421354f, 1.54221082f, 1.68179286f, 1.83400810f};
  return kOf[i];
}
KVASIR_HOST_DEVICE constexpr float between_eighths(int i) {
  constexpr float kOf[8] = {1.04427373f, 1.13878858f, 1.24185777f, 1.35425556f,
                            1.47682619f, 1.61049032f, 1.75625217f, 1.91520655f};
  return kOf[i];
}
KVASIR_HOST_DEVICE constexpr float between_quarters(int i) {
  constexpr float kOf[4] = {1.09050775f, 1.29683959f, 1.54221082f, 1.83400810f};
  return kOf[i];
}

constexpr int kNormBias = 128;  // norms: 2^-16 up to 2^15.875
constexpr int kStepBias = 160;  // steps: 2^-20 up to 2^11.875

// 2^(eighths / 8), for numbers that have such a float.
KVASIR_HOST_DEVICE static inline float power(int eighths) {
  const int whole = eighths >= 0 ? eighths / 8 : -((7 - eighths) / 8);
  return eighth(eighths - 8 * whole) * bits_float(static_cast<uint32_t>(127 + whole) << 23);
}

// All norms and all steps, by their codes.
struct Powers {
  float of[256];
  constexpr explicit Powers(int bias) : of() {
    for (int code = 0; code < 256; ++code) {
      float power = eighth(code % 8);
      for (int octave = code / 8; octave < bias / 8; ++octave) power *= 0.5f;
      for (int octave = bias / 8; octave < code / 8; ++octave) power *= 2.0f;
      of[code] = power;
    }
  }
};
static constexpr Powers kNorms(128), kSteps(160);

// 1 / power(eighths), the quotient rounded once.
KVASIR_HOST_DEVICE static inline float inverse_power(int eighths) { return 1.0f / power(eighths); }

KVASIR_HOST_DEVICE static inline int exponent_of(float x) { return static_cast<int>(float_bits(x) >> 23) - 127; }
KVASIR_HOST_DEVICE static inline float mantissa_of(float x) {
  return bits_float((float_bits(x) & 0x7FFFFFu) | 0x3F800000u);
}

KVASIR_HOST_DEVICE static inline uint8_t byte_of(int number) {
  return static_cast<uint8_t>(number < 0 ? 0 : number > 255 ? 255 : number);
}

// The stored norm of a row whose squares have this mean: of its root, to the nearest eighth of an octave.
KVASIR_HOST_DEVICE static inline uint8_t norm_code(float mean_square) {
  if (!(mean_square >= 1.17549435e-38f)) return 0;
  int quarters = 4 * exponent_of(mean_square);
  for (int i = 0; i < 4; ++i) quarters += mantissa_of(mean_square) >= between_quarters(i);
  return byte_of(quarters + kNormBias);
}
KVASIR_HOST_DEVICE static inline float norm_of(uint8_t code) { return power(code - kNormBias); }

// The eighth nearest to a positive x, and the first that is not below it.
KVASIR_HOST_DEVICE static inline int nearest_eighth(float x) {
  int eighths = 8 * exponent_of(x);
  for (int i = 0; i < 8; ++i) eighths += mantissa_of(x) >= between_eighths(i);
  return eighths;
}
KVASIR_HOST_DEVICE static inline int eighth_above(float x) {
  int eighths = 8 * exponent_of(x);
  for (int i = 0; i < 8; ++i) eighths += mantissa_of(x) > eighth(i);
  return eighths;
}

// How a channel of a page is stored: element = low_value + code * step_value.
struct Parameters {
  uint8_t step;
  int8_t low;
};

KVASIR_HOST_DEVICE static inline float step_value(uint8_t step) { return power(step - kStepBias); }
// What a unit of `low` is worth, in steps: fine where codes are few, and whole steps where they reach as far as `low`.
KVASIR_HOST_DEVICE static inline float low_unit(int of_class) {
  return of_class == 0 || of_class == 4 ? 1.0f : of_class == 3 ? 0.25f : 0.125f;
}
KVASIR_HOST_DEVICE static inline float low_value(Parameters stored, int of_class) {
  return static_cast<float>(stored.low) * (low_unit(of_class) * step_value(stored.step));
}

constexpr float kMostLow = 127.0f;

// `low` and `high`: the least and greatest element of the channel, `mean` theirs. Codes are cells of equal size, each
// standing for its middle; a channel of no bits stands for its mean.
KVASIR_HOST_DEVICE static inline Parameters parameters_of(int of_class, float low, float high, float mean) {
  constexpr float kLeast = 9.53674316e-7f;  // 2^-20
  const int width = width_of(of_class);
  const float cell = (high - low) * bits_float(static_cast<uint32_t>(127 - width) << 23);
  const float base = of_class == 0 ? mean : low + 0.5f * cell;
  const float reach = kMostLow * low_unit(of_class);  // of `low`, in steps
  const float least = fabsf(base) / reach;
  Parameters stored;
  stored.step = byte_of(nearest_eighth(of_class != 0 && cell > kLeast ? cell : kLeast) + kStepBias);
  if (reach * step_value(stored.step) < fabsf(base)) stored.step = byte_of(eighth_above(least) + kStepBias);
  const float units = rintf(base * inverse_power(stored.step - kStepBias) / low_unit(of_class));
  stored.low = static_cast<int8_t>(units < -kMostLow ? -kMostLow : units > kMostLow ? kMostLow : units);
  return stored;
}

// `last`: the greatest code of the width. Rounds to the nearest by an addition, after which the code stands in the
// lowest bits; without branches, and the same code on every machine.
KVASIR_HOST_DEVICE static inline uint32_t code_of(float z, float low, float inverse_step, float last) {
  constexpr float kWhole = 8388608.0f;  // 2^23
  const float cells = (z - low) * inverse_step;
  const float from_zero = cells > 0.0f ? cells : 0.0f;
  return float_bits((from_zero < last ? from_zero : last) + kWhole) & 0xFFu;
}

// Widths ------------------------------------------------------------------------------------------------------------
//
// A channel should have one more bit for each doubling of its range in the page, from the least element to the
// greatest, so that cells are alike in all. The range, and not the variance: that hardly sees a few tokens that stand
// out, and those are the ones that queries look for. Channels are sorted by the squares of their ranges, and tiles of
// eight in that order get the width nearest to the logarithm of their range above a level, which is such that the bits
// of all tiles add up. Logarithms are those that the bits of a float show, read as a whole number: close enough, and
// the same everywhere.

constexpr int64_t kOctave = int64_t{2} << 23;  // of the range: two of its square

// What a tile must have above the level to be of class i + 1, half way between the widths, in octaves.
KVASIR_HOST_DEVICE static inline int64_t class_limit(int i) {
  return i == 0 ? kOctave / 2 : i == 1 ? 3 * kOctave / 2 : i == 2 ? 3 * kOctave : 6 * kOctave;
}

KVASIR_HOST_DEVICE static inline int class_above(int64_t above) {
  int found = 0;
  for (int i = 0; i < kClasses - 1; ++i) found += above >= class_limit(i);
  return found;
}

// classes[c]: of each channel, by the square of its range. `bits`: the widths of all tiles, added up.
static inline void choose_classes(const float* square, int head_dim, int bits, uint8_t* classes) {
  const int tiles = head_dim / kTile;
  int64_t key[kMaxHeadDim / kTile] = {};
  uint8_t tile_of[kMaxHeadDim];
  for (int c = 0; c < head_dim; ++c) {
    int rank = 0;
    for (int o = 0; o < head_dim; ++o) rank += square[o] > square[c] || (square[o] == square[c] && o < c);
    tile_of[c] = static_cast<uint8_t>(rank / kTile);
    key[rank / kTile] += float_bits(square[c]);
  }
  for (int t = 0; t < tiles; ++t) key[t] /= kTile;
  const auto bits_at = [&](int64_t level) {
    int all = 0;
    for (int t = 0; t < tiles; ++t) all += width_of(class_above(key[t] - level));
    return all;
  };
  int64_t low = -8 * kOctave, level = int64_t{1} << 31;  // too many bits, or all of them; none
  while (low + 1 < level) {
    const int64_t middle = low + (level - low) / 2;
    (bits_at(middle) > bits ? low : level) = middle;
  }
  int of_tile[kMaxHeadDim / kTile];
  for (int t = 0; t < tiles; ++t) of_tile[t] = class_above(key[t] - level);
  // What is left goes to the tiles that are nearest to the next width, as long as one of them can be paid.
  for (int left = bits - bits_at(level);;) {
    int best = -1;
    int64_t missing = 0;
    for (int t = 0; t < tiles; ++t) {
      if (of_tile[t] == kClasses - 1 || width_of(of_tile[t] + 1) - width_of(of_tile[t]) > left) continue;
      const int64_t here = class_limit(of_tile[t]) - (key[t] - level);
      if (best >= 0 && here >= missing) continue;
      best = t;
      missing = here;
    }
    if (best < 0) break;
    left -= width_of(of_tile[best] + 1) - width_of(of_tile[best]);
    ++of_tile[best];
  }
  for (int c = 0; c < head_dim; ++c) classes[c] = static_cast<uint8_t>(of_tile[tile_of[c]]);
}

// Shrinking -----------------------------------------------------------------------------------------------------------
//
// Cells nest: a code without its lowest bits is that of a cell as many times as wide. So channels go to the next
// narrower class one tile at a time, always the tile where that costs least.

// Bits that a channel of a class gives up at once.
constexpr int dropped_bits(int of_class) { return width_of(of_class) - width_of(of_class - 1); }

// What a channel becomes one class lower. Of its codes, `ones` of kPageTokens are 1, which counts where none are left.
static inline Parameters narrowed(Parameters stored, int of_class, int ones) {
  if (of_class == 1) {
    const float share = static_cast<float>(ones) / static_cast<float>(kPageTokens);
    const float base = static_cast<float>(stored.low) * low_unit(1) + share;  // in steps, exact
    return parameters_of(0, 0.0f, 0.0f, base * step_value(stored.step));
  }
  const auto cells = static_cast<float>(1 << dropped_bits(of_class));  // that become one
  const float base = static_cast<float>(stored.low) * low_unit(of_class) + 0.5f * (cells - 1.0f);
  stored.step = byte_of(stored.step + 8 * dropped_bits(of_class));
  stored.low = static_cast<int8_t>(rintf(base / (cells * low_unit(of_class - 1))));
  return stored;
}

// Eighths of an octave by which a step of this class counts as greater than it is: half the logarithm of what each bit
// that it gives up adds to the squared error, (4^bits - 1) / bits times its own.
constexpr int narrowing_cost(int of_class) { return of_class == 4 ? 24 : of_class == 3 ? 12 : 6; }

// The tile that goes first: the eight channels of one class with the least steps, where these and the class's cost are
// least; the narrowest among equals. Returns the class, 0 where no channel has any bits.
static inline int choose_narrowed(const uint8_t* classes, const uint8_t* steps, int head_dim, uint16_t* tile) {
  int chosen = 0, least = 0;
  for (int of_class = 1; of_class < kClasses; ++of_class) {
    uint16_t first[kTile];
    int count = 0, sum = 0;
    for (int c = 0; c < head_dim; ++c) {
      if (classes[c] != of_class) continue;
      int at = count < kTile ? count++ : kTile;
      for (; at > 0 && steps[first[at - 1]] > steps[c]; --at) {
        if (at < kTile) first[at] = first[at - 1];
      }
      if (at < kTile) first[at] = static_cast<uint16_t>(c);
    }
    if (count == 0) continue;
    for (int i = 0; i < kTile; ++i) sum += steps[first[i]] + narrowing_cost(of_class);
    if (chosen != 0 && sum >= least) continue;
    chosen = of_class;
    least = sum;
    memcpy(tile, first, sizeof first);
  }
  return chosen;
}

}  // namespace kvasir::spectral
