// Products with weights in blocks of codes, by 8-bit activations.
//
// A block of kCodeBlock weights of each of kPanelColumns columns is unpacked once (Panel) and multiplied with all rows
// of the call. An element is
//
//   sum over groups of the depth: weight scale * activation scale * (whole-number product) - minimum * activation sum
//
// in that order, whatever the rows beside it: the same bits for one token and for many.
#include "kernels/cpu/products/block_matrix.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products/panel.h"
#include "kernels/cpu/products/point_rows.h"
#include "kernels/cpu/products/tile_rows.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

constexpr int kPanelRows = 4;

// sums[r][v] += the part of the depth that the panel holds.
template <class Blocks, int kRows>
inline void add_groups(const Panel& panel, int depth, const CodedPart* in, F32 (&sums)[kRows][kPanelVectors]) {
  constexpr int kGroup = Blocks::kGroup;
  for (int at = 0; at < depth; at += kGroup) {
    F32 dots[kRows][kPanelVectors];
    if constexpr (kRows <= kPlainRows) {
      plain_dots<kGroup, kRows>(panel.columns, in, at, dots);
    } else {
      group_dots<kGroup, kRows>(panel.words + at / 4, in, at, dots);
    }
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      const F32 scales = load(panel.scales[at / kCodeGroup] + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const F32 scale = splat(in[r].scales[at / kScaleGroup]);
        sums[r][v] = fma(dots[r][v] * scales, scale, sums[r][v]);
      }
      if constexpr (Blocks::kMinimums) {
        const F32 minimums = load(panel.minimums[at / kCodeGroup] + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          sums[r][v] = fma(-minimums, splat(group_sum<kGroup>(in[r], at)), sums[r][v]);
        }
      }
    }
  }
}

// Where a panel's sums are kept between parts of the depth.
struct Target {
  float* out;
  int64_t stride;
  int columns;        // of the panel that there are
  const float* bias;  // of them, or null
  bool first;         // the first part of the depth: begin with the bias
};

template <class Blocks, int kRows>
void add_rows(const Panel& panel, int depth, const CodedPart* in, const Target& target) {
  alignas(64) float begun[kRows][kPanelColumns] = {};
  const bool all = target.columns == kPanelColumns;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const float* from = target.first ? target.bias : target.out + r * target.stride;
    if (from && all) memcpy(begun[r], from, sizeof begun[r]);
    if (from && !all) memcpy(begun[r], from, target.columns * sizeof(float));
  }
  F32 sums[kRows][kPanelVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = load(begun[r] + v * kLanes);
  }
  add_groups<Blocks, kRows>(panel, depth, in, sums);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      if (all) {
        store(target.out + r * target.stride + v * kLanes, sums[r][v]);
      } else {
        store(begun[r] + v * kLanes, sums[r][v]);
      }
    }
    if (!all) memcpy(target.out + r * target.stride, begun[r], target.columns * sizeof(float));
  }
}

// Bytes of a column that are fetched into the cache ahead of their turn: those of the next panel.
inline void fetch(const uint8_t* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

template <class Blocks>
inline void unpack_columns(const uint8_t* const (&from)[kPanelColumns], int depth, Codes* columns) {
#if defined(__AVX512VNNI__)
  if constexpr (__is_same(Blocks, BlocksIQ2_XXS)) {
    const uint64_t* magnitudes = magnitude_table();
    for (int c = 0; c < kPanelColumns; c += 2) {
      unpack_points(magnitudes, from[c], from[c + 1], columns + c, columns + c + 1);
    }
    return;
  }
#endif
  for (int c = 0; c < kPanelColumns; ++c) Blocks::unpack(from[c], depth, columns + c);
}

template <class Blocks>
void fill_panel(const MatrixBlock& block, int64_t column, int columns, int64_t begin, int depth, Panel* panel) {
  const int64_t offset = begin / Blocks::kElements * Blocks::kBytes, bytes = depth / Blocks::kElements * Blocks::kBytes;
  const bool more = column + 2 * kPanelColumns <= block.columns;
  const uint8_t* from[kPanelColumns];
  for (int c = 0; c < kPanelColumns; ++c) {
    // Columns that are not there repeat the last: what they give is not written.
    from[c] = block.b + (column + (c < columns ? c : columns - 1)) * block.row_bytes + offset;
    if (more) fetch(from[c] + kPanelColumns * block.row_bytes, bytes);
  }
  unpack_columns<Blocks>(from, depth, panel->columns);
  constexpr size_t kStride = sizeof(Codes);
  interleave(panel->columns->scales, kStride, kCodeBlock / kCodeGroup, 0, panel->scales);
  if (Blocks::kMinimums) interleave(panel->columns->minimums, kStride, kCodeBlock / kCodeGroup, 0, panel->minimums);
  const uint32_t flip = block.rows >= kLeastTileRows ? 0 : kCodeFlip;  // tiles multiply signed bytes
  if (block.rows > kPlainRows) interleave(panel->columns->codes, kStride, depth / 4, flip, panel->words);
}

template <class Blocks>
void add_some(const Panel& panel, int depth, const CodedPart* in, int64_t rows, const Target& target) {
  switch (rows) {
    case 1:
      return add_rows<Blocks, 1>(panel, depth, in, target);
    case 2:
      return add_rows<Blocks, 2>(panel, depth, in, target);
    case 3:
      return add_rows<Blocks, 3>(panel, depth, in, target);
    default:
      return add_rows<Blocks, kPanelRows>(panel, depth, in, target);
  }
}

template <class Blocks>
void panel_product(const MatrixBlock& block, int64_t column, int columns, Panel* panel) {
  for (int64_t begin = 0; begin < block.depth; begin += kCodeBlock) {
    const int depth = static_cast<int>(block.depth - begin < kCodeBlock ? block.depth - begin : kCodeBlock);
    fill_panel<Blocks>(block, column, columns, begin, depth, panel);
    for (int64_t r = 0; r < block.rows; r += kPanelRows) {
      const CodedPart* in = block.coded + begin / kCodedDepth * block.rows + r;
      const Target target = {block.out + r * block.stride + column, block.stride, columns,
                             block.bias ? block.bias + column : nullptr, begin == 0};
      add_some<Blocks>(*panel, depth, in, block.rows - r, target);
    }
  }
}

// The same by tiles, whose sums stay together until the depth is through: rows of `out` are far apart.
template <class Blocks>
void tile_product(const MatrixBlock& block, int64_t column, int columns, Panel* panel) {
  TileSums sums;
  alignas(64) float bias[kPanelColumns] = {};
  if (block.bias) memcpy(bias, block.bias + column, columns * sizeof *bias);
  for (int64_t r = 0; r < block.rows; ++r) memcpy(sums.rows[r], bias, sizeof bias);
  begin_tiles(Blocks::kGroup);
  for (int64_t begin = 0; begin < block.depth; begin += kCodeBlock) {
    const int depth = static_cast<int>(block.depth - begin < kCodeBlock ? block.depth - begin : kCodeBlock);
    fill_panel<Blocks>(block, column, columns, begin, depth, panel);
    const CodedPart* in = block.coded + begin / kCodedDepth * block.rows;
    add_tiles<Blocks>(*panel, columns, depth, in, block.rows, &sums);
  }
  end_tiles();
  for (int64_t r = 0; r < block.rows; ++r) {
    memcpy(block.out + r * block.stride + column, sums.rows[r], columns * sizeof(float));
  }
}

}  // namespace

void block_product(const MatrixBlock& block) {
  if (few_point_rows(block)) return;
  Panel panel;
  for (int64_t c = 0; c < block.columns; c += kPanelColumns) {
    const int columns = static_cast<int>(block.columns - c < kPanelColumns ? block.columns - c : kPanelColumns);
    with_blocks(block.type, [&](auto blocks) {
      using Blocks = decltype(blocks);
      if constexpr (kTiles) {
        if (block.rows >= kLeastTileRows) return tile_product<Blocks>(block, c, columns, &panel);
      }
      panel_product<Blocks>(block, c, columns, &panel);
    });
  }
}

void encode(const float* values, int depth, CodedPart* out) {
  constexpr int kVectors = kScaleGroup / kLanes;
  for (int begin = 0; begin < depth; begin += kScaleGroup) {
    F32 largest = splat(0.0f), not_finite = splat(0.0f);
    for (int v = 0; v < kVectors; ++v) {
      const F32 x = load(values + begin + v * kLanes);
      largest = max(largest, abs(x));
      not_finite = not_finite + x * splat(0.0f);  // NaN where x is NaN or infinite
    }
    const float top = highest(largest);
    const bool some = top >= 0x1p-100f;
    const float inverse = some ? 127.0f / top : 0.0f;
    const float scale = (some ? top * (1.0f / 127) : 0.0f) + sum(not_finite);
    out->scales[begin / kScaleGroup] = scale;
    alignas(64) int32_t rounded[kScaleGroup];
    for (int v = 0; v < kVectors; ++v) {
      store(rounded + v * kLanes, round(load(values + begin + v * kLanes) * splat(inverse)));
    }
    int8_t* codes = out->codes + begin;
    for (int i = 0; i < kScaleGroup; ++i) codes[i] = static_cast<int8_t>(rounded[i]);
    for (int g = 0; g < kScaleGroup / kSumGroup; ++g) {
      int32_t total = 0;
      for (int i = 0; i < kSumGroup; ++i) total += codes[g * kSumGroup + i];
      out->sums[begin / kSumGroup + g] = scale * static_cast<float>(total);
      out->offsets[begin / kSumGroup + g] = -128 * total;
    }
  }
}

}  // namespace kvasir::KVASIR_LEVEL
