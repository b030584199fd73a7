// The tiered codec: keys whose channels differ in width. Queries are brought into the order of the part once; the codes
// of both tiers then share one scale, because it is the query times the column's step that becomes bytes. See
// uniform.cc, "folded", for the arithmetic.
#include "base/half.h"
#include "kernels/cpu/byte_rows.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tier_dots.h"
#include "kernels/tiered_inl.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

using tiered::Layout;

constexpr int kRowsAtOnce = kMaxByteRows / 2;
constexpr int kMaxColumns = kMaxSize + kGroupLanes;

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

// Writes kTokens tokens, 16 apart, of columns begin .. begin + plane.columns: their code bytes become words.
template <int kTokens>
void pack_words(const uint8_t* const (&codes)[kTokens], const tiered::Plane& plane, uint8_t* first_word) {
  for (int column = 0; column < plane.columns; column += tiered::kColumnsPerVector) {
    uint32_t word = 0;
    for (int i = 0; i < kTokens; ++i) {
      uint32_t four;
      memcpy(&four, codes[i] + column, sizeof four);
      word |= four << (i * (8 / kTokens));
    }
    memcpy(first_word + column / tiered::kColumnsPerVector * tiered::kVectorBytes, &word, sizeof word);
  }
}

void encode(const PageFormat& format, const float* rows, uint8_t* page) {
  const Layout layout = tiered::layout_of(format, page);
  const int d = format.head_dim;
  const uint8_t* channels = tiered::channels_of(page);
  write_values(layout, rows, page);

  // Codes are computed channel by channel as they come, and put into the order of columns as bytes.
  alignas(64) float lo[kMaxSize] = {}, inverse[kMaxSize] = {};
  alignas(64) int32_t levels[kMaxSize] = {};
  uint8_t channel_of[kMaxColumns] = {};
  int real[kMaxColumns];
  for (int column = 0; column < layout.columns; ++column) {
    const int at = layout.place_of(column);
    real[column] = at >= 0;
    channel_of[column] = at >= 0 ? channels[at] : 0;
    if (at >= 0) levels[channels[at]] = levels_of_column(layout, column);
  }
  alignas(64) uint8_t codes[kPageTokens][kMaxColumns];
  for (int t = 0; t < kPageTokens; ++t) {
    if (t % layout.group == 0) {
      const uint8_t* stored_lo = page + layout.lo_offset(t / layout.group);
      const uint8_t* stored_range = page + layout.range_offset(t / layout.group);
      for (int column = 0; column < layout.columns; ++column) {
        if (!real[column]) continue;
        uint16_t half[2];
        memcpy(&half[0], stored_lo + 2 * column, 2);
        memcpy(&half[1], stored_range + 2 * column, 2);
        const int c = channel_of[column];
        lo[c] = half_to_float(half[0]);
        inverse[c] = uniform::inverse_step(half_to_float(half[1]), levels[c]);
      }
    }
    alignas(64) int32_t by_channel[kMaxSize];
    for (int c = 0; c < d; c += kLanes) {
      const F32 x = load(rows + static_cast<size_t>(t) * d + c);
      store(by_channel + c, min(round((x - load(lo + c)) * load(inverse + c)), load(levels + c)));
    }
    for (int column = 0; column < layout.columns; ++column) {
      codes[t][column] = static_cast<uint8_t>(by_channel[channel_of[column]] * real[column]);
    }
  }
  for (int t = 0; t < kPageTokens; ++t) {
    if (t % layout.wide.tokens_per_vector() < 16) {
      const uint8_t* const tokens[2] = {codes[t], codes[t + 16]};
      pack_words(tokens, layout.wide, page + layout.wide_offset + layout.wide.byte_of(0, t));
    }
    if (t % layout.narrow.tokens_per_vector() < 16) {
      const int first = layout.wide.columns;
      const uint8_t* const tokens[4] = {codes[t] + first, codes[t + 16] + first, codes[t + 32] + first,
                                        codes[t + 48] + first};
      pack_words(tokens, layout.narrow, page + layout.narrow_offset + layout.narrow.byte_of(0, t));
    }
  }
}

// A part as attention sees it, and the queries of a few rows in its order.
struct PartQueries {
  Layout layout;
  int columns;                                      // rounded up to kGroupLanes
  alignas(64) float inverse_levels[kMaxColumns];    // 1 / levels
  alignas(64) float half_levels[kMaxColumns];       // levels / 2
  alignas(64) float values[kRowsAtOnce][kMaxSize];  // of the 16-bit tier
  alignas(64) float by_column[kRowsAtOnce][kMaxColumns];
};

void begin_part(const PageFormat& format, const uint8_t* page, PartQueries& part) {
  part.layout = tiered::layout_of(format, page);
  part.columns = (part.layout.columns + kGroupLanes - 1) / kGroupLanes * kGroupLanes;
  for (int column = 0; column < part.columns; ++column) {
    const bool wide = column < part.layout.wide.columns;
    part.inverse_levels[column] = wide ? 1.0f / 15.0f : 1.0f / 3.0f;
    part.half_levels[column] = wide ? 7.5f : 1.5f;
  }
}

void permute_queries(const uint8_t* page, const TileInput& queries, int first, int rows, PartQueries& part) {
  const Layout& layout = part.layout;
  const uint8_t* channels = tiered::channels_of(page);
  for (int r = 0; r < rows; ++r) {
    const float* query = queries.rows + static_cast<size_t>(first + r) * queries.stride;
    for (int i = 0; i < layout.n16; ++i) part.values[r][i] = query[channels[i]];
    float* to = part.by_column[r];
    const uint8_t* wide = channels + layout.n16;
    for (int i = 0; i < layout.n4; ++i) to[i] = query[wide[i]];
    for (int i = layout.n4; i < layout.wide.columns; ++i) to[i] = 0.0f;
    const uint8_t* narrow = wide + layout.n4;
    to += layout.wide.columns;
    for (int i = 0; i < layout.n2; ++i) to[i] = query[narrow[i]];
    for (int i = layout.n2; layout.wide.columns + i < part.columns; ++i) to[i] = 0.0f;
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

// One group's parameters by column; padding has step 0.
struct ColumnScales {
  alignas(64) float step[kMaxColumns];
  alignas(64) float base[kMaxColumns];
  alignas(64) float origin[kMaxColumns];
};

void load_scales(const uint8_t* page, const PartQueries& part, int g, ColumnScales& scales) {
  const Layout& layout = part.layout;
  alignas(64) uint16_t stored_lo[kMaxColumns], stored_range[kMaxColumns];
  memcpy(stored_lo, page + layout.lo_offset(g), 2 * static_cast<size_t>(layout.columns));
  memcpy(stored_range, page + layout.range_offset(g), 2 * static_cast<size_t>(layout.columns));
  const size_t rest = 2 * static_cast<size_t>(part.columns - layout.columns);
  memset(stored_lo + layout.columns, 0, rest);
  memset(stored_range + layout.columns, 0, rest);
  const F32 zero = splat(0.0f);
  for (int x = 0; x < part.columns; x += kLanes) {
    const F32 lo = load_half(stored_lo + x);
    const F32 range = load_half(stored_range + x);
    const F32 step = range * load(part.inverse_levels + x);
    const F32 middle = load(part.half_levels + x);
    // An estimate is enough: the base below is that of whatever origin comes out.
    const F32 code_of_zero = (zero - lo) * reciprocal_estimate(step);
    const F32 above_zero = lo + range > zero ? code_of_zero : middle;
    const F32 origin = lo < zero ? above_zero : middle;
    store(scales.step + x, step);
    store(scales.base + x, fma(origin, step, lo));
    store(scales.origin + x, origin);
  }
}

void fill_block(const PartQueries& part, int rows, const ColumnScales& scales, RowBlock& block) {
  alignas(64) float values[kMaxColumns];
  block.rows = 0;
  block.byte_rows = 0;
  for (int r = 0; r < rows; ++r) {
    F32 peak = splat(0.0f), offset = splat(0.0f);
    for (int x = 0; x < part.columns; x += kLanes) {
      const F32 query = load(part.by_column[r] + x);
      const F32 value = query * load(scales.step + x);
      offset = fma(query, load(scales.base + x), offset);
      peak = max(peak, abs(value));
      store(values + x, value);
    }
    block.add(values, 0, part.columns, {peak, splat(0.0f)}, false, scales.origin, sum(offset));
  }
}

void add_totals(const RowBlock& block, const int32_t* totals, float* scores) {
  for (int r = 0; r < block.rows; ++r) {
    const RowBlock::Row& row = block.row[r];
    const int32_t* high = totals + row.byte_row * kMaxSize;
    const int32_t* low = high + kMaxSize;
    const F32 scale = splat(row.scale);
    const F32 constant = splat(row.offset - row.sum * row.scale);
    float* to = scores + r * kPageTokens;
    for (int t = 0; t < kChunk; t += kLanes) {
      const F32 total = to_float((load(high + t) << 7) + load(low + t));
      store(to + t, load(to + t) + fma(total, scale, constant));
    }
  }
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  constexpr void (*kValueScores[])(const uint8_t*, const PartQueries&, float*) = {value_scores<1>, value_scores<2>,
                                                                                  value_scores<3>, value_scores<4>};
  PartQueries part;
  ColumnScales scales;
  RowBlock block;
  alignas(64) int32_t totals[kMaxByteRows * kMaxSize];
  begin_part(format, page, part);
  for (int first = 0; first < queries.count; first += kRowsAtOnce) {
    const int rows = queries.count - first < kRowsAtOnce ? queries.count - first : kRowsAtOnce;
    float* to = scores + static_cast<size_t>(first) * kPageTokens;
    permute_queries(page, queries, first, rows, part);
    kValueScores[rows - 1](page, part, to);
    if (part.layout.columns == 0) continue;
    for (int g = 0; g < part.layout.groups; ++g) {
      load_scales(page, part, g, scales);
      fill_block(part, rows, scales, block);
      for (int t = g * part.layout.group; t < (g + 1) * part.layout.group; t += kChunk) {
        const int chunk = t / kChunk;
        multiply_chunk_for(chunk, block.byte_rows)(codes_of_chunk(part.layout, page, chunk), block.bytes, totals);
        add_totals(block, totals, to + t);
      }
    }
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
