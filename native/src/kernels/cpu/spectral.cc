// The spectral codec. Coefficients of queries are there when a page is met, so a page of keys costs
//
//   score[t] = norm[t] * (sum over channels of q * low + sum over columns of (q * step) * code)
//
// where q * step becomes bytes, and one of values, for each channel,
//
//   sum += low * (sum over tokens of w * norm) + step * (sum over tokens of (w * norm) * code)
//
// where w * norm does. As in the uniform codec, codes count from their middle, so that rounding the bytes costs least.
#include "kernels/cpu/dots/spectral.h"

#include "kernels/cpu/byte_rows.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/number_rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/spectral_inl.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

using spectral::Columns;
using spectral::Layout;

// Encoding ----------------------------------------------------------------------------------------------------------

void encode(const PageFormat& format, const float* rows, uint8_t* part) {
  const Layout layout = spectral::layout_of(format);
  const int d = format.head_dim;
  const Basis* basis = spectral::basis_of(format);
  const float scale = spectral::row_scale(d);
  alignas(64) float z[kPageTokens * kMaxHeadDim];
  alignas(64) int16_t numbers[kNumberRows * kMaxHeadDim];
  NumberMatrix inverse_basis;
  for (int head = 0; head < format.heads; ++head) {
    uint8_t* to = part + static_cast<size_t>(head) * layout.bytes;
    if (basis) inverse_basis.take(basis->inverse(head), d);
    for (int t = 0; t < kPageTokens; t += kNumberRows) {
      float* four = z + static_cast<size_t>(t) * d;
      for (int i = 0; i < kNumberRows; ++i) {
        const float* row = rows + (static_cast<size_t>(t + i) * format.heads + head) * d;
        const uint8_t norm = spectral::norm_code(spectral::mean_square(row, d));
        const float inverse = spectral::inverse_power(norm - spectral::kNormBias);
        to[layout.norms + t + i] = norm;
        if (basis) {
          for (int c = 0; c < d; ++c) numbers[i * d + c] = spectral::row_number(row[c], scale * inverse);
        } else {
          for (int c = 0; c < d; ++c) four[i * d + c] = row[c] * inverse;
        }
      }
      if (basis) inverse_basis.multiply(numbers, basis->units(head), four);
    }
    spectral::write_head(format, z, to);
  }
}

// Decoding ----------------------------------------------------------------------------------------------------------

// out[t] = rows[t] times the matrix, for kTokens tokens and all columns: one fused addition for each channel of a row,
// in their order.
template <int kTokens>
void multiply_rows(const float* rows, const float* matrix, int d, float* out) {
  constexpr int kVectors = kRegisters == 16 ? 2 : 4;
  for (int c = 0; c < d; c += kVectors * kLanes) {
    const int vectors = (d - c) / kLanes < kVectors ? (d - c) / kLanes : kVectors;
    F32 sums[kTokens][kVectors];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[t][v] = splat(0.0f);
    }
    if (vectors == kVectors) {
      for (int i = 0; i < d; ++i) {
        const float* add = matrix + static_cast<size_t>(i) * d + c;
        F32 row[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) row[v] = load(add + v * kLanes);
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
          const F32 x = splat(rows[static_cast<size_t>(t) * d + i]);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sums[t][v] = fma(x, row[v], sums[t][v]);
        }
      }
    } else {
      for (int v = 0; v < vectors; ++v) {
        F32 sum[kTokens];
        for (int t = 0; t < kTokens; ++t) sum[t] = splat(0.0f);
        for (int i = 0; i < d; ++i) {
          const F32 row = load(matrix + static_cast<size_t>(i) * d + c + v * kLanes);
          for (int t = 0; t < kTokens; ++t) sum[t] = fma(splat(rows[static_cast<size_t>(t) * d + i]), row, sum[t]);
        }
        for (int t = 0; t < kTokens; ++t) store(out + static_cast<size_t>(t) * d + c + v * kLanes, sum[t]);
      }
      continue;
    }
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(out + static_cast<size_t>(t) * d + c + v * kLanes, sums[t][v]);
    }
  }
}

void decode(const PageFormat& format, const uint8_t* part, float* rows) {
  const Layout layout = spectral::layout_of(format);
  const int d = format.head_dim;
  const Basis* basis = spectral::basis_of(format);
  alignas(64) float z[kPageTokens * kMaxHeadDim], x[4 * kMaxHeadDim];
  for (int head = 0; head < format.heads; ++head) {
    const uint8_t* from = spectral::head_of(format, part, head);
    spectral::read_head(format, from, z);
    for (int t = 0; t < kPageTokens; t += 4) {
      const float* four = z + static_cast<size_t>(t) * d;
      if (basis) multiply_rows<4>(four, basis->vectors(head), d, x);
      for (int i = 0; i < 4; ++i) {
        float* row = rows + (static_cast<size_t>(t + i) * format.heads + head) * d;
        const F32 norm = splat(spectral::kNorms.of[from[layout.norms + t + i]]);
        for (int c = 0; c < d; c += kLanes) store(row + c, load((basis ? x : four) + i * d + c) * norm);
      }
    }
  }
}

// Attention ---------------------------------------------------------------------------------------------------------

// A head of a page as attention sees it.
struct HeadParameters {
  Columns columns;
  alignas(64) float norm[kPageTokens];
  alignas(64) float base[kMaxHeadDim];                            // of a channel: what the middles of its codes are
  alignas(64) float step[spectral::kMaxColumns + kGroupLanes];    // of a column
  alignas(64) float middle[spectral::kMaxColumns + kGroupLanes];  // of a column's codes
};

void load_head(const Layout& layout, const uint8_t* head, HeadParameters& out) {
  const int d = layout.head_dim;
  out.columns = spectral::columns_of(head, d);
  for (int t = 0; t < kPageTokens; ++t) out.norm[t] = spectral::kNorms.of[head[layout.norms + t]];
  float steps[kMaxHeadDim];
  for (int c = 0; c < d; ++c) {
    steps[c] = spectral::kSteps.of[head[layout.steps + c]];
    // Of class 0: what is wider is corrected below.
    out.base[c] = static_cast<float>(static_cast<int8_t>(head[layout.lows + c])) * steps[c];
  }
  for (int plane = 0; plane < spectral::kPlanes; ++plane) {
    const int bits = spectral::plane_bits(plane), first = out.columns.first(plane);
    const float middle = 0.5f * static_cast<float>((1 << bits) - 1);
    const float unit = plane == 0 ? 0.25f : 0.125f;
    for (int i = first; i < first + out.columns.count[plane]; ++i) {
      const int c = out.columns.channel[i];
      out.step[i] = steps[c] * static_cast<float>(out.columns.factor[i]);
      out.middle[i] = middle;
    }
    // High digits come first, and their channels keep whole steps.
    const int wide = plane == 0 ? spectral::wide_columns(out.columns) : 0;
    for (int i = first + wide; i < first + out.columns.count[plane] - wide; ++i) {
      out.base[out.columns.channel[i]] *= unit;
    }
    for (int i = first; i < first + out.columns.count[plane]; ++i) {
      out.base[out.columns.channel[i]] += middle * out.step[i];
    }
  }
}

// The columns first .. first + count - 1 of all planes, `columns` of which were passed before.
ColumnRange range_of(const Columns& columns, const uint8_t* codes, int begin, int end) {
  ColumnRange range;
  for (int plane = 0; plane < spectral::kPlanes; ++plane) {
    const int first = columns.first(plane), all = columns.count[plane];
    const int from = begin < first ? 0 : begin - first < all ? begin - first : all;
    const int to = end < first ? 0 : end - first < all ? end - first : all;
    range.plane[plane] = codes + spectral::plane_offset(columns, plane) + static_cast<size_t>(from / 4) * 64;
    range.all[plane] = all;
    range.count[plane] = to - from;
  }
  return range;
}

void key_scores(const PageFormat& format, const uint8_t* part, const TileInput& queries, float* scores) {
  const Layout layout = spectral::layout_of(format);
  const uint8_t* head = spectral::head_of(format, part, queries.head);
  const int d = format.head_dim;
  HeadParameters parameters;
  load_head(layout, head, parameters);
  const Columns& columns = parameters.columns;
  memset(scores, 0, sizeof(float) * kPageTokens * queries.count);
  RowBlock block;
  alignas(64) int32_t totals[kMaxByteRows * kMaxSize];
  alignas(64) float values[kMaxSize + kGroupLanes];
  for (int begin = 0; begin == 0 || begin < columns.all; begin += kMaxSize) {
    const int size = columns.all - begin < kMaxSize ? columns.all - begin : kMaxSize;
    const int padded = (size + kGroupLanes - 1) / kGroupLanes * kGroupLanes;
    const ColumnRange range = range_of(columns, head + layout.codes, begin, begin + size);
    for (int i = begin + size; i < begin + padded; ++i) parameters.middle[i] = 0.0f;
    for (int first = 0; first < queries.count; first += block.rows) {
      block.rows = block.byte_rows = 0;
      for (int r = first; r < queries.count; ++r) {
        const float* terms = queries.terms + static_cast<size_t>(r) * d;
        F32 offset = splat(0.0f), peak = splat(0.0f), energy = splat(0.0f);
        for (int c = 0; begin == 0 && c < d; c += kLanes) {
          offset = fma(load(terms + c), load(parameters.base + c), offset);
        }
        for (int i = 0; i < size; ++i) values[i] = terms[columns.channel[begin + i]] * parameters.step[begin + i];
        for (int i = size; i < padded; ++i) values[i] = 0.0f;
        for (int i = 0; i < padded; i += kLanes) peak = max(peak, abs(load(values + i)));
        if (!block.add(values, 0, padded, {peak, energy}, false, parameters.middle + begin, sum(offset))) break;
      }
      block.arrange(0, (size + kUnit - 1) / kUnit * kUnit);
      multiply_columns_for(block.byte_rows)(range, block.bytes, totals);
      for (int r = 0; r < block.rows; ++r) {
        const RowBlock::Row& row = block.row[r];
        const int32_t* high = totals + row.byte_row * kMaxSize;
        const F32 scale = splat(row.scale), rest = splat(row.offset - row.sum * row.scale);
        float* to = scores + static_cast<size_t>(first + r) * kPageTokens;
        for (int t = 0; t < kPageTokens; t += kLanes) {
          const F32 total = to_float(SplitBytes::join(load(high + t), load(high + kMaxSize + t)));
          store(to + t, fma(fma(total, scale, rest), load(parameters.norm + t), load(to + t)));
        }
      }
    }
  }
}

// sums[row][channel] += what the totals of two tiles of columns say, `count` columns of `bits` bits in all.
void add_tiles(const RowBlock& block, const HeadParameters& parameters, int column, int count, int bits,
               const int32_t* totals, float* sums, int entries) {
  constexpr int kBoth = 2 * spectral::kTile;
  const uint16_t* channels = parameters.columns.channel + column;
  const float middle = 0.5f * static_cast<float>((1 << bits) - 1);
  alignas(64) float products[kBoth];
  for (int r = 0; r < block.rows; ++r) {
    const RowBlock::Row& row = block.row[r];
    const int32_t* high = totals + row.byte_row * kMaxSize;
    const F32 scale = splat(row.scale), rest = splat(-row.sum * middle * row.scale);
    for (int i = 0; i < kBoth; i += kLanes) {
      const F32 total =
          to_float(row.split ? SplitBytes::join(load(high + i), load(high + kMaxSize + i)) : load(high + i));
      store(products + i, fma(total, scale, rest) * load(parameters.step + column + i));
    }
    float* to = sums + static_cast<size_t>(r) * entries;
    for (int i = 0; i < count; ++i) to[channels[i]] += products[i];
  }
}

void value_sum(const PageFormat& format, const uint8_t* part, const TileInput& weights, float*) {
  const Layout layout = spectral::layout_of(format);
  const uint8_t* head = spectral::head_of(format, part, weights.head);
  const int d = format.head_dim;
  HeadParameters parameters;
  load_head(layout, head, parameters);
  const Columns& columns = parameters.columns;
  RowBlock block;
  alignas(64) int32_t totals[kMaxByteRows * kMaxSize];
  alignas(64) float values[kMaxSize + kGroupLanes];
  for (int first = 0; first < weights.count; first += block.rows) {
    block.rows = block.byte_rows = 0;
    for (int r = first; r < weights.count; ++r) {
      const float* row = weights.rows + static_cast<size_t>(r) * weights.stride;
      F32 peak = splat(0.0f), energy = splat(0.0f), all = splat(0.0f);
      for (int t = 0; t < kPageTokens; t += kLanes) {
        const F32 value = load(row + t) * load(parameters.norm + t);
        peak = max(peak, abs(value));
        energy = fma(value, value, energy);
        all = all + value;
        store(values + t, value);
      }
      const float sum_of_row = sum(all);
      if (!block.add(values, 0, kPageTokens, {peak, energy}, weights.fast, nullptr, sum_of_row)) break;
    }
    block.arrange(0, kPageTokens);
    float* sums = weights.sums + static_cast<size_t>(first) * weights.entries;
    for (int r = 0; r < block.rows; ++r) {
      float* to = sums + static_cast<size_t>(r) * weights.entries;
      const F32 offset = splat(block.row[r].offset);
      for (int c = 0; c < d; c += kLanes) store(to + c, fma(offset, load(parameters.base + c), load(to + c)));
    }
    for (int plane = 0; plane < spectral::kPlanes; ++plane) {
      const int bits = spectral::plane_bits(plane);
      const size_t tile = static_cast<size_t>(kPageTokens) * bits;  // bytes of eight columns
      const uint8_t* codes = head + layout.codes + spectral::plane_offset(columns, plane);
      const MultiplyTiles multiply = multiply_tiles_for(bits, block.byte_rows);
      for (int column = 0; column < columns.count[plane]; column += 2 * spectral::kTile) {
        const int left = columns.count[plane] - column;
        const uint8_t* here = codes + column / spectral::kTile * tile;
        const bool two = left > spectral::kTile;
        multiply(here, two ? here + tile : here, block.bytes, totals);
        add_tiles(block, parameters, columns.first(plane) + column, two ? 2 * spectral::kTile : spectral::kTile, bits,
                  totals, sums, weights.entries);
      }
    }
  }
}

}  // namespace

const CodecKernels spectral_kernels = {
    encode, decode, key_scores, value_sum, spectral::begin_keys, spectral::end_values, spectral::shrink,
};

}  // namespace kvasir::KVASIR_LEVEL
