// The tiered codec: keys whose channels differ in width. Queries are brought into the order of the part once. Then
//
//   score[t] = sum over the 16-bit tier of q * value
//            + sum over columns of q * (lo + range / 2) + (q * step) * (code - middle)
//
// where it is q * step that becomes bytes, so that the codes of both narrow tiers share one scale; and because groups
// of tokens are short, all groups share it too, and a group costs one pass over its parameters. The rounding errors of
// the bytes are multiplied with code - middle, hence the middle.
#include "kernels/cpu/dots/tiered.h"

#include "base/half.h"
#include "kernels/cpu/byte_rows.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_bytes.h"
#include "kernels/tiered_inl.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

using tiered::Layout;

constexpr int kRowsAtOnce = kMaxByteRows / 2;
constexpr int kMaxColumns = kMaxSize + kGroupLanes;
constexpr float kLargest = 3e38f;

size_t lay_out(const PageFormat& format, const float* rows, const float* importance, uint8_t* head) {
  const int d = format.head_dim;
  ChannelExtremes extremes;
  for (int g = 0; g < kPageTokens / format.group; ++g) {
    for (int c = 0; c < d; c += kLanes) {
      const float* from = rows + static_cast<size_t>(g) * format.group * d + c;
      F32 low = load(from), high = low;
      for (int t = 1; t < format.group; ++t) {
        const F32 x = load(from + static_cast<size_t>(t) * d);
        low = min(low, x);
        high = max(high, x);
      }
      store(extremes.low + g * d + c, low);
      store(extremes.high + g * d + c, high);
    }
  }
  return write_head(format, extremes, importance, head);
}

// Codes as bytes, in the order of columns; padding is 0.
struct CodeBytes {
  alignas(64) uint8_t of[kPageTokens][kMaxColumns];
};

// Computed channel by channel as they come: which has a column, and what its codes are, is looked up by channel.
void make_codes(const Layout& layout, const float* rows, const uint8_t* page, CodeBytes& codes) {
  const int d = layout.head_dim;
  alignas(64) float lo[kMaxSize] = {}, inverse[kMaxSize] = {};
  alignas(64) int32_t last[kMaxSize] = {}, cells[kMaxSize] = {};  // cells: all bits set where codes are those of cells
  uint8_t channel_of[kMaxColumns];
  uint8_t real[kMaxColumns];  // 0 for padding
  for (int column = 0; column < layout.columns; ++column) {
    const int at = layout.place_of(column);
    real[column] = at >= 0;
    channel_of[column] = at >= 0 ? tiered::channels_of(page)[at] : 0;
    if (at < 0) continue;
    const uniform::Codes kind = codes_of_column(layout, column);
    last[channel_of[column]] = kind.last;
    cells[channel_of[column]] = -static_cast<int32_t>(kind.cells);
  }
  for (int t = 0; t < kPageTokens; ++t) {
    for (int column = 0; t % layout.group == 0 && column < layout.columns; ++column) {
      if (!real[column]) continue;
      const uniform::Parameters stored = tiered::load_parameters(layout, page, t / layout.group, column);
      const int c = channel_of[column];
      lo[c] = half_to_float(stored.lo);
      inverse[c] = uniform::inverse_step(half_to_float(stored.range), codes_of_column(layout, column));
    }
    alignas(64) int32_t by_channel[kMaxSize];
    for (int c = 0; c < d; c += kLanes) {
      const F32 x = load(rows + static_cast<size_t>(t) * d + c);
      const F32 quotient = (x - load(lo + c)) * load(inverse + c);
      const I32 in_cell = load(cells + c);
      const I32 code = (truncate(quotient) & in_cell) | (round(quotient) & ~in_cell);
      store(by_channel + c, min(code, load(last + c)));
    }
    for (int column = 0; column < layout.columns; ++column) {
      codes.of[t][column] = static_cast<uint8_t>(by_channel[channel_of[column]] * real[column]);
    }
  }
}

// Puts the codes of a plane together, words of 8 / kBits tokens that are 16 apart. first: its first column.
template <int kBits>
void pack_codes(const CodeBytes& codes, const tiered::Plane& plane, int first, uint8_t* to) {
  for (int t = 0; t < kPageTokens; ++t) {
    if (plane.bit_of(t) != 0) continue;
    for (int column = 0; column < plane.columns; column += tiered::kColumnsPerVector) {
      uint32_t word = 0;
      for (int i = 0; i < 8 / kBits; ++i) {
        uint32_t four;
        memcpy(&four, codes.of[t + 16 * i] + first + column, sizeof four);
        word |= four << (i * kBits);
      }
      memcpy(to + plane.byte_of(column, t), &word, sizeof word);
    }
  }
}

void encode(const PageFormat& format, const float* rows, uint8_t* page) {
  const Layout layout = tiered::layout_of(format, page);
  write_values(layout, rows, page);
  CodeBytes codes;
  make_codes(layout, rows, page, codes);
  pack_codes<4>(codes, layout.wide, 0, page + layout.wide_offset);
  pack_codes<2>(codes, layout.narrow, layout.wide.columns, page + layout.narrow_offset);
}

// A part as attention sees it, and the queries of a few rows in its order.
struct PartQueries {
  Layout layout;
  int columns;                                         // rounded up to kGroupLanes
  alignas(64) float inverse_steps[kMaxColumns];        // of each column's codes: step over range
  alignas(64) float middle[kMaxColumns];               // of the codes: half of the last
  alignas(64) float values[kRowsAtOnce][kMaxColumns];  // of the 16-bit tier
  alignas(64) float by_column[kRowsAtOnce][kMaxColumns];
  alignas(64) float scaled[kRowsAtOnce][kMaxColumns];  // times a column's range, what becomes bytes
  float scale[kRowsAtOnce];                            // of those
};

void begin_part(const PageFormat& format, const uint8_t* page, PartQueries& part) {
  part.layout = tiered::layout_of(format, page);
  part.columns = (part.layout.columns + kGroupLanes - 1) / kGroupLanes * kGroupLanes;
  for (int column = 0; column < part.columns; ++column) {
    const uniform::Codes codes = codes_of_column(part.layout, column);
    part.inverse_steps[column] = 1.0f / codes.steps;
    part.middle[column] = 0.5f * static_cast<float>(codes.last);
  }
}

template <int kRows>
void permute_queries(const uint8_t* page, const float* queries, int stride, PartQueries& part) {
  const Layout& layout = part.layout;
  const uint8_t* channel = tiered::channels_of(page);
  const auto move = [&](int count, float(*to)[kMaxColumns], int column) {
    for (int i = 0; i < count; ++i, ++channel) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) to[r][column + i] = queries[static_cast<size_t>(r) * stride + *channel];
    }
  };
  const auto clear = [&](int begin, int end) {
    for (int column = begin; column < end; ++column) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) part.by_column[r][column] = 0.0f;
    }
  };
  move(layout.n16, part.values, 0);
  move(layout.n4, part.by_column, 0);
  clear(layout.n4, layout.wide.columns);
  move(layout.n2, part.by_column, layout.wide.columns);
  clear(layout.wide.columns + layout.n2, part.columns);
}

// One group's parameters as float16, with zeros up to part.columns.
struct ColumnParameters {
  alignas(64) uint16_t lo[kMaxColumns];
  alignas(64) uint16_t range[kMaxColumns];
};

// tiered::parameters_of_bytes, of all columns.
void expand_parameters(const uint8_t* page, const PartQueries& part, int g, ColumnParameters& to) {
  const Layout& layout = part.layout;
  alignas(64) int8_t lo[kMaxColumns];
  memset(lo, 0, sizeof lo);
  memset(to.range, 0, sizeof to.range);
  memcpy(lo, page + layout.lo_offset(g), static_cast<size_t>(layout.columns));
  const uint8_t* const ranges = page + layout.range_offset(g);
  for (int i = 0; i < layout.columns; ++i) to.range[i] = tiered::range_of_byte(ranges[i]);
  for (int x = 0; x < part.columns; x += kPlaneLanes) {
    F32 steps[kPlaneLanes / kLanes];
    load_bytes(lo + x, steps);
    for (int v = 0; v < kPlaneLanes / kLanes; ++v) {
      const int at = x + v * kLanes;
      const F32 exact = steps[v] * (load_half(to.range + at) * splat(1.0f / tiered::kLoSteps));
      store_half(to.lo + at, min(max(exact, splat(-tiered::kLastHalf)), splat(tiered::kLastHalf)));
    }
  }
}

void load_parameters(const uint8_t* page, const PartQueries& part, int g, ColumnParameters& to) {
  const Layout& layout = part.layout;
  if (layout.parameter_bytes == 1) return expand_parameters(page, part, g, to);
  const size_t bytes = 2 * static_cast<size_t>(layout.columns);
  const size_t rest = 2 * static_cast<size_t>(part.columns) - bytes;
  memcpy(to.lo, page + layout.lo_offset(g), bytes);
  memcpy(to.range, page + layout.range_offset(g), bytes);
  memset(to.lo + layout.columns, 0, rest);
  memset(to.range + layout.columns, 0, rest);
}

// One scale for all groups of a row: the largest of its products of query and step.
void scale_queries(const ColumnParameters* groups, int rows, PartQueries& part) {
  alignas(64) float steps[kMaxColumns];
  for (int x = 0; x < part.columns; x += kLanes) {
    F32 range = load_half(groups[0].range + x);
    for (int g = 1; g < part.layout.groups; ++g) range = max(range, load_half(groups[g].range + x));
    store(steps + x, range * load(part.inverse_steps + x));
  }
  for (int r = 0; r < rows; ++r) {
    F32 peaks = splat(0.0f);
    for (int x = 0; x < part.columns; x += kLanes)
      peaks = max(peaks, abs(load(part.by_column[r] + x) * load(steps + x)));
    const float true_peak = highest(peaks);
    const float peak = true_peak > kSmallestPeak ? true_peak : kSmallestPeak;
    part.scale[r] = peak * (1.0f / kSplitLimit);
    const F32 inverse = splat(kSplitLimit / peak);
    for (int x = 0; x < part.columns; x += kLanes) {
      const F32 scaled = load(part.by_column[r] + x) * load(part.inverse_steps + x) * inverse;
      // Only a column whose range is 0 can be beyond the limit here; finite, its products are 0.
      store(part.scaled[r] + x, max(min(scaled, splat(kLargest)), splat(-kLargest)));
    }
  }
}

// scores[row] = the products with the 16-bit tier.
template <int kRows>
void value_scores(const uint8_t* page, const PartQueries& part, float* scores) {
  constexpr int kVectors = kRegisters == 16 ? 2 : 4;
  for (int t = 0; t < kPageTokens; t += kVectors * kLanes) {
    F32 sums[kRows][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = splat(0.0f);
    }
    for (int i = 0; i < part.layout.n16; ++i) {
      const uint16_t* values = reinterpret_cast<const uint16_t*>(page + part.layout.value_offset(i)) + t;
      F32 keys[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) keys[v] = load_half(values + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const F32 query = splat(part.values[r][i]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(query, keys[v], sums[r][v]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(scores + r * kPageTokens + t + v * kLanes, sums[r][v]);
    }
  }
}

// Two byte rows for each query, and what its scores have besides the products of codes.
struct GroupBytes {
  alignas(64) int8_t bytes[kMaxByteRows * kMaxSize + kGroupLanes];
  float offset[kRowsAtOnce];
};

template <int kRows>
void make_bytes(const ColumnParameters& group, const PartQueries& part, GroupBytes& out) {
  F32 offsets[kRows], middles[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) offsets[r] = middles[r] = splat(0.0f);
  for (int x = 0; x < part.columns; x += kGroupLanes) {
    F32 range[4], centre[4], middle[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      range[i] = load_half(group.range + x + i * kLanes);
      // The middle of the codes is the middle of the range, on both grids.
      centre[i] = fma(range[i], splat(0.5f), load_half(group.lo + x + i * kLanes));
      middle[i] = load(part.middle + x + i * kLanes);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      SplitBytes bytes;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const int at = x + i * kLanes;
        const I32 t = round(load(part.scaled[r] + at) * range[i]);
        offsets[r] = fma(load(part.by_column[r] + at), centre[i], offsets[r]);
        middles[r] = fma(to_float(t), middle[i], middles[r]);
        bytes.put(i, t);
      }
      int8_t* to = out.bytes + 2 * r * kMaxSize + x;
      bytes.write(to, to + kMaxSize);
    }
  }
  arrange_rows(out.bytes, 2 * kRows, kMaxSize, 0, part.columns);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) out.offset[r] = sum(offsets[r] - middles[r] * splat(part.scale[r]));
}

template <int kRows>
void add_totals(const PartQueries& part, const GroupBytes& group, const int32_t* totals, float* scores) {
  for (int r = 0; r < kRows; ++r) {
    const int32_t* high = totals + 2 * r * kMaxSize;
    const int32_t* low = high + kMaxSize;
    const F32 scale = splat(part.scale[r]);
    const F32 offset = splat(group.offset[r]);
    float* to = scores + r * kPageTokens;
    for (int t = 0; t < kChunk; t += kLanes) {
      const F32 total = to_float(SplitBytes::join(load(high + t), load(low + t)));
      store(to + t, load(to + t) + fma(total, scale, offset));
    }
  }
}

template <int kRows>
void row_scores(const uint8_t* page, const float* queries, int stride, const ColumnParameters* groups,
                PartQueries& part, float* scores) {
  const Layout& layout = part.layout;
  GroupBytes bytes;
  alignas(64) int32_t totals[kMaxByteRows * kMaxSize];
  permute_queries<kRows>(page, queries, stride, part);
  value_scores<kRows>(page, part, scores);
  if (layout.columns == 0) return;
  scale_queries(groups, kRows, part);
  for (int chunk = 0; chunk < kPageTokens / kChunk; ++chunk) {
    if (chunk * kChunk % layout.group == 0) {
      make_bytes<kRows>(groups[chunk * kChunk / layout.group], part, bytes);
    }
    multiply_chunk<2 * kRows>(codes_of_chunk(layout, page, chunk), chunk % 2, bytes.bytes, totals);
    add_totals<kRows>(part, bytes, totals, scores + chunk * kChunk);
  }
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  constexpr void (*kRowScores[])(const uint8_t*, const float*, int, const ColumnParameters*, PartQueries&, float*) = {
      row_scores<1>, row_scores<2>, row_scores<3>, row_scores<4>};
  PartQueries part;
  ColumnParameters groups[kPageTokens / 32];
  begin_part(format, page, part);
  for (int g = 0; g < part.layout.groups; ++g) load_parameters(page, part, g, groups[g]);
  for (int first = 0; first < queries.count; first += kRowsAtOnce) {
    const int rows = queries.count - first < kRowsAtOnce ? queries.count - first : kRowsAtOnce;
    kRowScores[rows - 1](page, queries.rows + static_cast<size_t>(first) * queries.stride, queries.stride, groups, part,
                         scores + static_cast<size_t>(first) * kPageTokens);
  }
}

constexpr CodecKernels make_kernels() {
  CodecKernels kernels = {encode, nullptr, key_scores, nullptr};
  kernels.lay_out = lay_out;
  return kernels;
}

}  // namespace

constexpr CodecKernels tiered_kernels = make_kernels();

}  // namespace kvasir::KVASIR_LEVEL
