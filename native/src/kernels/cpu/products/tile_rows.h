// Products of many rows by AMX: a tile of 16 rows and 16 columns in one instruction a group of the depth.
//
// Activations lie as tiles want their first argument, panels as they want the second, so nothing is arranged. A group's
// products leave the tile as whole numbers and are scaled as those of a few rows are: the same bits. What a tile stores
// can be loaded only long after, so the products of a unit, 16 rows with 16 columns, are made while those of the unit
// before are scaled.
#pragma once

#include "kernels/cpu/products/panel.h"
#include "kernels/cpu/products/tile_shapes.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

constexpr int kTileRows = 16;

// Sums of all rows of a call with the columns of a panel, while the depth is walked through: [rows][kPanelColumns].
struct TileSums {
  static constexpr int kRows = kCodedRows;
  alignas(64) float rows[kRows][kPanelColumns];
};

#if KVASIR_TILES
static_assert(kLanes == kTileRows, "a vector is a row of a tile");
static_assert(kSpareRows >= kTileRows - 1, "rows of the last tile that are not there can be read");

constexpr bool kTiles = true;
// From so many rows on they are used.
constexpr int kLeastTileRows = 8;

// Tiles 0 and 1 are sums, 2 and 3 rows, 4 and 5 columns.
inline void begin_tiles(int group) {
  TileShapes shapes;
  for (int i = 0; i < 2; ++i) {
    shapes.set(i, kTileRows, 64);
    shapes.set(2 + i, kTileRows, group);
    shapes.set(4 + i, group / 4, 64);
  }
  _tile_loadconfig(&shapes);
}
inline void end_tiles() { _tile_release(); }

// 16 columns of a panel and 16 rows, in one part of the depth.
struct TileUnit {
  const Panel* panel;
  int first;  // of the columns
  const CodedPart* rows;
};

using TileDots = int32_t[kTileRows][kLanes];

// dots[0] and dots[1] = the products of two groups.
template <int kGroup>
inline void two_group_dots(const TileUnit& unit, int at, TileDots* dots) {
  constexpr int kStride = sizeof unit.panel->words[0];
  _tile_zero(0);
  _tile_loadd(2, unit.rows->codes + at, sizeof *unit.rows);
  _tile_loadd(4, unit.panel->words[at / 4] + unit.first, kStride);
  _tile_dpbssd(0, 2, 4);
  _tile_zero(1);
  _tile_loadd(3, unit.rows->codes + at + kGroup, sizeof *unit.rows);
  _tile_loadd(5, unit.panel->words[(at + kGroup) / 4] + unit.first, kStride);
  _tile_dpbssd(1, 3, 5);
  _tile_stored(0, dots[0], sizeof dots[0][0]);
  _tile_stored(1, dots[1], sizeof dots[1][0]);
}

template <class Blocks>
inline void add_scaled(const TileUnit& unit, int at, const TileDots& dots, F32 (&sums)[kTileRows]) {
  const F32 scales = load(unit.panel->scales[at / kCodeGroup] + unit.first);
  const F32 minimums = load(unit.panel->minimums[at / kCodeGroup] + unit.first);
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    const CodedPart& row = unit.rows[r];
    sums[r] = fma(to_float(load(dots[r])) * scales, splat(row.scales[at / kScaleGroup]), sums[r]);
    if constexpr (Blocks::kMinimums) sums[r] = fma(-minimums, splat(group_sum<Blocks::kGroup>(row, at)), sums[r]);
  }
}

// Adds the part of the depth that the panel holds.
template <class Blocks>
void add_tiles(const Panel& panel, int columns, int depth, const CodedPart* in, int64_t rows, TileSums* sums) {
  constexpr int kGroup = Blocks::kGroup;
  alignas(64) TileDots dots[2][kCodeBlock / kGroup];
  const int64_t vectors = (columns + kLanes - 1) / kLanes, units = (rows + kTileRows - 1) / kTileRows * vectors;
  const auto unit_at = [&](int64_t u) {
    return TileUnit{&panel, static_cast<int>(u % vectors) * kLanes, in + u / vectors * kTileRows};
  };
  asm volatile("" ::: "memory");  // the panel is written: instructions of tiles do not say what they read
  for (int at = 0; at < depth; at += 2 * kGroup) two_group_dots<kGroup>(unit_at(0), at, dots[0] + at / kGroup);
  for (int64_t u = 0; u < units; ++u) {
    const TileUnit unit = unit_at(u), next = unit_at(u + 1);
    const TileDots* found = dots[u % 2];
    TileDots* made = dots[(u + 1) % 2];
    float(*out)[kPanelColumns] = sums->rows + u / vectors * kTileRows;
    F32 here[kTileRows];
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) here[r] = load(out[r] + unit.first);
    for (int at = 0; at < depth; at += 2 * kGroup) {
      if (u + 1 < units) two_group_dots<kGroup>(next, at, made + at / kGroup);
      add_scaled<Blocks>(unit, at, found[at / kGroup], here);
      if (at + kGroup < depth) add_scaled<Blocks>(unit, at + kGroup, found[at / kGroup + 1], here);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) store(out[r] + unit.first, here[r]);
  }
}
#else
constexpr bool kTiles = false;
constexpr int kLeastTileRows = 1 << 30;
inline void begin_tiles(int) {}
inline void end_tiles() {}
template <class Blocks>
inline void add_tiles(const Panel&, int, int, const CodedPart*, int64_t, TileSums*) {}
#endif

}  // namespace
}  // namespace kvasir::KVASIR_LEVEL
