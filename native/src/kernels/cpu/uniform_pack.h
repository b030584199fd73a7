// Encoding and decoding of uniform pages, for all codecs whose pages are such. Every element goes through the float32
// operations of formula.h, in the same order, so that all backends write the same bytes.
//
// A register of elements is kLanes consecutive channels of one token. Pages of values keep channels in their lanes too,
// so words are put together register by register. Pages of keys keep tokens in their lanes, and the four bytes of a
// word are consecutive channels of one token: there a row of code bytes is cut into words, four channels at a time.
#pragma once

#include "codecs/uniform/format.h"
#include "codecs/uniform/formula.h"
#include "kernels/cpu/code_dots.h"
#include "kernels/cpu/simd.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

// Parameters of all groups of a page as floats: lo, or the element of code 0, and what multiplies (x - lo) or a code.
struct PageScales {
  int entries;
  alignas(64) float lo[1024];
  alignas(64) float factor[1024];
};
static_assert(kMaxSize * (kPageTokens / 32) <= 1024, "entries times groups");

// Lowest and highest of one channel over the tokens of a group, for kLanes channels at a time.
inline void channel_extremes(const float* rows, int d, int first_token, int end_token, float* low, float* high) {
  for (int c = 0; c < d; c += kLanes) {
    F32 least = load(rows + static_cast<size_t>(first_token) * d + c);
    F32 most = least;
    for (int t = first_token + 1; t < end_token; ++t) {
      const F32 x = load(rows + static_cast<size_t>(t) * d + c);
      least = min(least, x);
      most = max(most, x);
    }
    store(low + c, least);
    store(high + c, most);
  }
}

// Lowest and highest of one token over the channels of a group, for all tokens.
inline void token_extremes(const float* rows, int d, int first_channel, int end_channel, float* low, float* high) {
  for (int t = 0; t < kPageTokens; ++t) {
    const float* row = rows + static_cast<size_t>(t) * d;
    F32 least = load(row + first_channel);
    F32 most = least;
    for (int c = first_channel + kLanes; c < end_channel; c += kLanes) {
      const F32 x = load(row + c);
      least = min(least, x);
      most = max(most, x);
    }
    low[t] = lowest(least);
    high[t] = highest(most);
  }
}

inline void write_parameters(const PageFormat& format, const uniform::Layout& layout, const float* rows, uint8_t* page,
                             PageScales& scales) {
  const bool by_channel = format.axis == Axis::kChannel;
  const int positions = by_channel ? kPageTokens : format.head_dim;
  const uniform::Codes codes = uniform::codes_of(format.bits, format.grid);
  scales.entries = layout.entries;
  for (int g = 0; g < layout.groups; ++g) {
    const int begin = g * layout.group;
    const int end = begin + layout.group < positions ? begin + layout.group : positions;
    alignas(64) float low[kMaxSize];
    alignas(64) float high[kMaxSize];
    if (by_channel) {
      channel_extremes(rows, format.head_dim, begin, end, low, high);
    } else {
      token_extremes(rows, format.head_dim, begin, end, low, high);
    }
    uint16_t* stored_lo = reinterpret_cast<uint16_t*>(page + layout.lo_offset(g));
    uint16_t* stored_range = reinterpret_cast<uint16_t*>(page + layout.range_offset(g));
    for (int e = 0; e < layout.entries; ++e) {
      const uniform::Parameters stored = uniform::parameters_of(low[e], high[e]);
      stored_lo[e] = stored.lo;
      stored_range[e] = stored.range;
      scales.lo[g * layout.entries + e] = half_to_float(stored.lo);
      scales.factor[g * layout.entries + e] = uniform::inverse_step(half_to_float(stored.range), codes);
    }
  }
}

inline void read_parameters(const PageFormat& format, const uniform::Layout& layout, const uint8_t* page,
                            PageScales& scales) {
  const uniform::Codes codes = uniform::codes_of(format.bits, format.grid);
  scales.entries = layout.entries;
  for (int g = 0; g < layout.groups; ++g) {
    const uint16_t* lo = reinterpret_cast<const uint16_t*>(page + layout.lo_offset(g));
    const uint16_t* range = reinterpret_cast<const uint16_t*>(page + layout.range_offset(g));
    for (int e = 0; e < layout.entries; e += kLanes) {
      const F32 step = load_half(range + e) / splat(codes.steps);
      store(scales.lo + g * layout.entries + e, load_half(lo + e) + splat(codes.centre) * step);
      store(scales.factor + g * layout.entries + e, step);
    }
  }
}

// lo and factor of kLanes channels of one token.
struct LaneScales {
  F32 lo, factor;
};

inline LaneScales scales_at(const PageFormat& format, const PageScales& scales, int token, int channel) {
  if (format.axis == Axis::kChannel) {
    const int i = token / format.group * scales.entries + channel;
    return {load(scales.lo + i), load(scales.factor + i)};
  }
  const int i = channel / format.group * scales.entries + token;
  return {splat(scales.lo[i]), splat(scales.factor[i])};
}

inline I32 encode_lanes(F32 x, const LaneScales& scales, const uniform::Codes& codes) {
  const F32 quotient = (x - scales.lo) * scales.factor;
  return min(codes.cells ? truncate(quotient) : round(quotient), splat(codes.last));
}

inline F32 decode_lanes(I32 codes, const LaneScales& scales) { return scales.lo + to_float(codes) * scales.factor; }

// Where the word of (x, y) is in a plane.
inline size_t word_offset(const CodePlane& plane, int x, int y) {
  const size_t vector = static_cast<size_t>(y / kPlaneLanes) * plane.vectors_per_row() + x / plane.x_per_vector();
  return vector * 64 + y % kPlaneLanes * 4;
}

// A row of code bytes of one plane, with room for the x that pad its last vector.
struct ByteCodes {
  alignas(64) uint8_t at[kMaxSize + 32];
};

// codes_at(token, channel) gives the codes of kLanes channels.
template <class CodesAt>
void pack_keys(const PageFormat& format, const uniform::Layout& layout, const CodesAt& codes_at, uint8_t* page) {
  const int d = format.head_dim;
  for (int t = 0; t < kPageTokens; ++t) {
    alignas(64) int32_t codes[kMaxSize];
    for (int c = 0; c < d; c += kLanes) store(codes + c, codes_at(t, c));
    for (int p = 0; p < layout.plane_count; ++p) {
      const CodePlane& plane = layout.planes[p];
      const int mask = (1 << plane.bits) - 1;
      ByteCodes bytes = {};
      for (int c = 0; c < d; ++c) bytes.at[c] = static_cast<uint8_t>((codes[c] >> plane.shift) & mask);
      for (int x = 0; x < d; x += plane.x_per_vector()) {
        uint32_t word = 0;
        for (int i = 0; i < plane.codes_per_byte(); ++i) {
          uint32_t four;
          memcpy(&four, bytes.at + x + 4 * i, sizeof four);
          word |= four << (i * plane.bits);
        }
        memcpy(page + layout.plane_offset[p] + word_offset(plane, x, t), &word, sizeof word);
      }
    }
  }
}

inline void decode_keys(const PageFormat& format, const uniform::Layout& layout, const PageScales& scales,
                        const uint8_t* page, float* rows) {
  const int d = format.head_dim;
  for (int t = 0; t < kPageTokens; ++t) {
    alignas(64) int32_t codes[kMaxSize] = {};
    for (int p = 0; p < layout.plane_count; ++p) {
      const CodePlane& plane = layout.planes[p];
      const uint32_t mask = 0x01010101u * ((1u << plane.bits) - 1);
      ByteCodes bytes;
      for (int x = 0; x < d; x += plane.x_per_vector()) {
        uint32_t word;
        memcpy(&word, page + layout.plane_offset[p] + word_offset(plane, x, t), sizeof word);
        for (int i = 0; i < plane.codes_per_byte(); ++i) {
          const uint32_t four = (word >> (i * plane.bits)) & mask;
          memcpy(bytes.at + x + 4 * i, &four, sizeof four);
        }
      }
      for (int c = 0; c < d; ++c) codes[c] |= bytes.at[c] << plane.shift;
    }
    for (int c = 0; c < d; c += kLanes) {
      store(rows + static_cast<size_t>(t) * d + c, decode_lanes(load(codes + c), scales_at(format, scales, t, c)));
    }
  }
}

// Tokens that a plane's vector holds, in the order of their bits in a word: byte t % 4, bits t / 4.
inline int bit_of_token(const CodePlane& plane, int token) { return token % 4 * 8 + plane.bit_of(token); }

template <class CodesAt>
void pack_values(const PageFormat& format, const uniform::Layout& layout, const CodesAt& codes_at, uint8_t* page) {
  const int d = format.head_dim;
  for (int p = 0; p < layout.plane_count; ++p) {
    const CodePlane& plane = layout.planes[p];
    const I32 mask = splat((1 << plane.bits) - 1);
    for (int first = 0; first < kPageTokens; first += plane.x_per_vector()) {
      for (int c = 0; c < d; c += kLanes) {
        U32 words = {};
        for (int t = first; t < first + plane.x_per_vector(); ++t) {
          words |= (U32)((codes_at(t, c) >> plane.shift) & mask) << bit_of_token(plane, t);
        }
        store_words(page + layout.plane_offset[p] + word_offset(plane, first, c), words);
      }
    }
  }
}

inline void decode_values(const PageFormat& format, const uniform::Layout& layout, const PageScales& scales,
                          const uint8_t* page, float* rows) {
  const int d = format.head_dim;
  for (int t = 0; t < kPageTokens; ++t) {
    for (int c = 0; c < d; c += kLanes) {
      I32 codes = {};
      for (int p = 0; p < layout.plane_count; ++p) {
        const CodePlane& plane = layout.planes[p];
        const U32 words = load_words(page + layout.plane_offset[p] + word_offset(plane, t, c));
        codes |= ((I32)(words >> bit_of_token(plane, t)) & splat((1 << plane.bits) - 1)) << plane.shift;
      }
      store(rows + static_cast<size_t>(t) * d + c, decode_lanes(codes, scales_at(format, scales, t, c)));
    }
  }
}

template <class CodesAt>
void pack_codes(const PageFormat& format, const uniform::Layout& layout, const CodesAt& codes_at, uint8_t* page) {
  if (format.side == Side::kKeys) {
    pack_keys(format, layout, codes_at, page);
  } else {
    pack_values(format, layout, codes_at, page);
  }
}

inline void uniform_encode(const PageFormat& format, const float* rows, uint8_t* page) {
  const uniform::Layout layout = uniform::layout_of(format);
  PageScales scales;
  write_parameters(format, layout, rows, page, scales);
  const uniform::Codes codes = uniform::codes_of(format.bits, format.grid);
  const auto codes_at = [&](int token, int channel) {
    const F32 x = load(rows + static_cast<size_t>(token) * format.head_dim + channel);
    return encode_lanes(x, scales_at(format, scales, token, channel), codes);
  };
  pack_codes(format, layout, codes_at, page);
}

inline void uniform_decode(const PageFormat& format, const uint8_t* page, float* rows) {
  const uniform::Layout layout = uniform::layout_of(format);
  PageScales scales;
  read_parameters(format, layout, page, scales);
  if (format.side == Side::kKeys) {
    decode_keys(format, layout, scales, page, rows);
  } else {
    decode_values(format, layout, scales, page, rows);
  }
}

}  // namespace
}  // namespace kvasir::KVASIR_LEVEL
