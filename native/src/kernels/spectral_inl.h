// What all levels do alike for the spectral codec: from coefficients to a page and back. Included by the sources of
// every level, hence in a namespace without a name.
#pragma once

#include <cmath>
#include <cstring>

#include "codecs/basis.h"
#include "codecs/spectral/format.h"
#include "codecs/spectral/formula.h"
#include "kernels/kernels.h"

namespace kvasir {
namespace spectral {
namespace {

// Null: rows are their own coefficients.
inline const Basis* basis_of(const PageFormat& format) { return static_cast<const Basis*>(format.model); }

inline const uint8_t* head_of(const PageFormat& format, const uint8_t* part, int kv_head) {
  return part + static_cast<size_t>(kv_head) * layout_of(format).bytes;
}

// Least and greatest coefficient of each channel over the page, their mean, and the square of the range.
struct Statistics {
  alignas(64) float low[kMaxHeadDim];
  alignas(64) float high[kMaxHeadDim];
  alignas(64) float mean[kMaxHeadDim];
  alignas(64) float square[kMaxHeadDim];
};

// Token by token, so that the order of additions is the same however many channels a machine adds at once.
inline void measure(const float* z, int d, Statistics& s) {
  for (int c = 0; c < d; ++c) s.low[c] = s.high[c] = s.mean[c] = z[c];
  for (int t = 1; t < kPageTokens; ++t) {
    const float* row = z + static_cast<size_t>(t) * d;
    for (int c = 0; c < d; ++c) {
      s.low[c] = row[c] < s.low[c] ? row[c] : s.low[c];
      s.high[c] = row[c] > s.high[c] ? row[c] : s.high[c];
      s.mean[c] += row[c];
    }
  }
  for (int c = 0; c < d; ++c) {
    const float range = s.high[c] - s.low[c];
    s.mean[c] *= 1.0f / kPageTokens;
    s.square[c] = range * range;
  }
}

// The mean of squares of a row, in sixteen sums that are then added by halves.
inline float mean_square(const float* row, int d) {
  float sums[16] = {};
  for (int c = 0; c < d; c += 16) {
    for (int i = 0; i < 16; ++i) sums[i] += row[c + i] * row[c + i];  // exact products: elements are float16 values
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0] / static_cast<float>(d);
}

// Codes of all channels, those of one channel together. Coefficients are taken token by token, as they stand, and codes
// change places in blocks, so that machines can do many at once.
struct HeadCodes {
  alignas(64) uint8_t of[kMaxHeadDim * kPageTokens];  // [channel][token]
};

inline void make_codes(const float* z, int d, const float* low, const float* inverse, const float* last,
                       HeadCodes& codes) {
  constexpr int kBlock = 16;  // tokens, and channels: head dims are multiples of that
  alignas(64) uint8_t rows[kBlock * kMaxHeadDim];
  for (int t = 0; t < kPageTokens; t += kBlock) {
    for (int i = 0; i < kBlock; ++i) {
      const float* row = z + static_cast<size_t>(t + i) * d;
      for (int c = 0; c < d; ++c) {
        rows[i * d + c] = static_cast<uint8_t>(code_of(row[c], low[c], inverse[c], last[c]));
      }
    }
    for (int c = 0; c < d; c += kBlock) {
      for (int j = 0; j < kBlock; ++j) {
        uint8_t* to = codes.of + static_cast<size_t>(c + j) * kPageTokens + t;
        for (int i = 0; i < kBlock; ++i) to[i] = rows[i * d + c + j];
      }
    }
  }
}

// A digit of a column, the bits from kShift on, packed: kStep bytes of tokens after kStep bytes, each kBits higher than
// the one before, 8 / kBits of them in one. All known, so that compilers stay with bytes.
template <int kStep, int kBits, int kShift>
inline void pack_column(const uint8_t* codes, uint8_t* packed) {
  constexpr int kParts = 8 / kBits, kMask = (1 << kBits) - 1;
  for (int block = 0; block < kPageTokens / (kStep * kParts); ++block) {
    uint8_t bytes[kStep] = {};
    for (int p = 0; p < kParts; ++p) {
      const uint8_t* from = codes + (block * kParts + p) * kStep;
      for (int i = 0; i < kStep; ++i) {
        bytes[i] = static_cast<uint8_t>(bytes[i] | (from[i] >> kShift & kMask) << kBits * p);
      }
    }
    memcpy(packed + block * kStep, bytes, kStep);
  }
}

// Of a plane, by tokens as its side has them: 16 for keys, 4 for values. `high`: the digit that is worth 16.
template <int kStep>
inline void pack_digit(int plane, bool high, const uint8_t* codes, uint8_t* packed) {
  if (plane == 2) return pack_column<kStep, 1, 0>(codes, packed);
  if (plane == 1) return pack_column<kStep, 2, 0>(codes, packed);
  if (high) return pack_column<kStep, 4, 4>(codes, packed);
  pack_column<kStep, 4, 0>(codes, packed);
}

// Codes of a plane where format.h has them.
inline void write_plane(const HeadCodes& codes, const Columns& columns, int plane, Side side, uint8_t* out) {
  const int bits = plane_bits(plane), count = columns.count[plane], size = kPageTokens * bits / 8;
  const int together = side == Side::kKeys ? 4 : kTile;  // columns of a vector
  uint8_t packed[kTile][kPageTokens];
  for (int first = 0; first < count; first += together) {
    for (int i = 0; i < together; ++i) {
      const int column = columns.first(plane) + first + i;
      const uint8_t* from = codes.of + static_cast<size_t>(columns.channel[column]) * kPageTokens;
      const auto pack = side == Side::kKeys ? pack_digit<16> : pack_digit<4>;
      pack(plane, columns.factor[column] == 16, from, packed[i]);
    }
    if (side == Side::kKeys) {
      for (int block = 0; block < size / 16; ++block) {
        uint8_t* vector = out + (static_cast<size_t>(block) * (count / 4) + first / 4) * 64;
        for (int lane = 0; lane < 16; ++lane) {
          for (int i = 0; i < 4; ++i) vector[4 * lane + i] = packed[i][16 * block + lane];
        }
      }
    } else {
      for (int block = 0; block < size / 4; ++block) {
        uint8_t* vector = out + (static_cast<size_t>(first / kTile) * (size / 4) + block) * 32;
        for (int lane = 0; lane < kTile; ++lane) memcpy(vector + 4 * lane, packed[lane] + 4 * block, 4);
      }
    }
  }
}

// Codes of all planes; widths are there.
inline void write_codes(const PageFormat& format, const HeadCodes& codes, uint8_t* head) {
  const Columns columns = columns_of(head, format.head_dim);
  uint8_t* out = head + layout_of(format).codes;
  for (int plane = 0; plane < kPlanes; ++plane) {
    write_plane(codes, columns, plane, format.side, out + plane_offset(columns, plane));
  }
}

inline void write_classes(const uint8_t* classes, int d, uint8_t* head) {
  memset(head, 0, static_cast<size_t>(3 * d / 8));
  for (int c = 0; c < d; ++c) {
    for (int i = 0; i < 3; ++i) {
      uint8_t& byte = head[(i * d + c) / 8];
      byte = static_cast<uint8_t>(byte | (classes[c] >> i & 1) << c % 8);
    }
  }
}

// Writes all of a head but its norms.
inline void write_head(const PageFormat& format, const float* z, uint8_t* head) {
  const Layout layout = layout_of(format);
  const int d = format.head_dim;
  Statistics s;
  measure(z, d, s);
  uint8_t classes[kMaxHeadDim];
  choose_classes(s.square, d, tile_bits(format), classes);
  write_classes(classes, d, head);
  memset(head + layout.steps, 0, layout.bytes - layout.steps);
  alignas(64) float low[kMaxHeadDim], inverse[kMaxHeadDim], last[kMaxHeadDim];
  for (int c = 0; c < d; ++c) {
    const Parameters stored = parameters_of(classes[c], s.low[c], s.high[c], s.mean[c]);
    head[layout.steps + c] = stored.step;
    head[layout.lows + c] = static_cast<uint8_t>(stored.low);
    low[c] = low_value(stored, classes[c]);
    inverse[c] = inverse_power(stored.step - kStepBias);
    last[c] = static_cast<float>((1 << width_of(classes[c])) - 1);
  }
  HeadCodes codes;
  make_codes(z, d, low, inverse, last, codes);
  write_codes(format, codes, head);
}

// The coefficients that a head stands for, norms left out.
inline void read_head(const PageFormat& format, const uint8_t* head, float* z) {
  const Layout layout = layout_of(format);
  const int d = format.head_dim;
  for (int c = 0; c < d; ++c) {
    const Parameters stored = {head[layout.steps + c], static_cast<int8_t>(head[layout.lows + c])};
    const float low = low_value(stored, class_of(head, d, c));
    for (int t = 0; t < kPageTokens; ++t) z[static_cast<size_t>(t) * d + c] = low;
  }
  const Columns columns = columns_of(head, d);
  for (int plane = 0; plane < kPlanes; ++plane) {
    const int bits = plane_bits(plane), first = columns.first(plane);
    const uint8_t* codes = head + layout.codes + plane_offset(columns, plane);
    for (int column = 0; column < columns.count[plane]; ++column) {
      const int c = columns.channel[first + column];
      const float step = step_value(head[layout.steps + c]) * static_cast<float>(columns.factor[first + column]);
      for (int t = 0; t < kPageTokens; ++t) {
        const CodePlace place = format.side == Side::kKeys ? key_place(bits, columns.count[plane], column, t)
                                                           : value_place(bits, column, t);
        const int code = codes[place.byte] >> place.bit & ((1 << bits) - 1);
        z[static_cast<size_t>(t) * d + c] += static_cast<float>(code) * step;
      }
    }
  }
}

// Shrinking ---------------------------------------------------------------------------------------------------------

inline void read_codes(const PageFormat& format, const uint8_t* head, HeadCodes& codes) {
  const Columns columns = columns_of(head, format.head_dim);
  memset(codes.of, 0, static_cast<size_t>(format.head_dim) * kPageTokens);
  for (int plane = 0; plane < kPlanes; ++plane) {
    const int bits = plane_bits(plane), first = columns.first(plane), mask = (1 << bits) - 1;
    const uint8_t* from = head + layout_of(format).codes + plane_offset(columns, plane);
    for (int column = 0; column < columns.count[plane]; ++column) {
      uint8_t* to = codes.of + static_cast<size_t>(columns.channel[first + column]) * kPageTokens;
      for (int t = 0; t < kPageTokens; ++t) {
        const CodePlace place = format.side == Side::kKeys ? key_place(bits, columns.count[plane], column, t)
                                                           : value_place(bits, column, t);
        to[t] = static_cast<uint8_t>(to[t] + (from[place.byte] >> place.bit & mask) * columns.factor[first + column]);
      }
    }
  }
}

// One channel to the next narrower class.
inline void narrow_channel(uint8_t* codes, uint8_t& of_class, uint8_t& step, uint8_t& low) {
  int ones = 0;
  for (int t = 0; t < kPageTokens; ++t) ones += codes[t];
  const Parameters next = narrowed({step, static_cast<int8_t>(low)}, of_class, ones);
  for (int t = 0; t < kPageTokens; ++t) codes[t] = static_cast<uint8_t>(codes[t] >> dropped_bits(of_class));
  step = next.step;
  low = static_cast<uint8_t>(next.low);
  --of_class;
}

// CodecKernels::shrink: head by head, each read before it is written, at or before where it was.
inline void shrink(const PageFormat& from, const PageFormat& to, const uint8_t* part, uint8_t* out) {
  const Layout before = layout_of(from), after = layout_of(to);
  const int d = from.head_dim;
  for (int h = 0; h < from.heads; ++h) {
    const uint8_t* head = part + static_cast<size_t>(h) * before.bytes;
    HeadCodes codes;
    read_codes(from, head, codes);
    uint8_t classes[kMaxHeadDim], norms[kPageTokens], steps[kMaxHeadDim], lows[kMaxHeadDim];
    int bits = 0;
    for (int c = 0; c < d; ++c) {
      classes[c] = static_cast<uint8_t>(class_of(head, d, c));
      bits += width_of(classes[c]);
    }
    memcpy(norms, head + before.norms, sizeof norms);
    memcpy(steps, head + before.steps, static_cast<size_t>(d));
    memcpy(lows, head + before.lows, static_cast<size_t>(d));
    while (bits > tile_bits(to) * kTile) {
      uint16_t tile[kTile];
      const int of_class = choose_narrowed(classes, steps, d, tile);
      for (const uint16_t c : tile) {
        narrow_channel(codes.of + static_cast<size_t>(c) * kPageTokens, classes[c], steps[c], lows[c]);
      }
      bits -= dropped_bits(of_class) * kTile;
    }
    uint8_t* written = out + static_cast<size_t>(h) * after.bytes;
    write_classes(classes, d, written);
    memcpy(written + after.norms, norms, sizeof norms);
    memset(written + after.steps, 0, after.bytes - after.steps);
    memcpy(written + after.steps, steps, static_cast<size_t>(d));
    memcpy(written + after.lows, lows, static_cast<size_t>(d));
    write_codes(to, codes, written);
  }
}

// Attention ---------------------------------------------------------------------------------------------------------

// terms[row][c] = <query, vector c>: once for all pages.
inline void begin_keys(const PageFormat& format, const SideView&, const TileInput& queries, float* terms) {
  const int d = format.head_dim;
  const Basis* basis = basis_of(format);
  for (int r = 0; r < queries.count; ++r) {
    const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
    float* to = terms + static_cast<size_t>(r) * d;
    if (basis == nullptr) {
      memcpy(to, query, sizeof(float) * d);
      continue;
    }
    for (int c = 0; c < d; ++c) {
      const float* vector = basis->vectors(queries.head) + static_cast<size_t>(c) * d;
      float sums[16] = {};
      for (int i = 0; i < d; i += 16) {
        for (int j = 0; j < 16; ++j) sums[j] += query[i + j] * vector[i + j];
      }
      for (int half = 8; half > 0; half /= 2) {
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
      }
      to[c] = sums[0];
    }
  }
}

// outputs[row] += the sum over c of sums[row][c] * vector c.
inline void end_values(const PageFormat& format, const SideView&, const TileInput& weights, float* outputs) {
  const int d = format.head_dim;
  const Basis* basis = basis_of(format);
  for (int r = 0; r < weights.count; ++r) {
    const float* sums = weights.sums + static_cast<size_t>(r) * weights.entries;
    float* to = outputs + static_cast<size_t>(r) * d;
    for (int c = 0; c < d; ++c) {
      if (basis == nullptr) {
        to[c] += sums[c];
        continue;
      }
      const float* vector = basis->vectors(weights.head) + static_cast<size_t>(c) * d;
      for (int i = 0; i < d; ++i) to[i] += sums[c] * vector[i];
    }
  }
}

}  // namespace
}  // namespace spectral
}  // namespace kvasir
