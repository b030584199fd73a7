// Products of many rows by AMX: a tile of 16 rows and 16 columns in one instruction a group of the depth.
//
// Activations lie as tiles want their first argument, panels as they want the second, so nothing is arranged. A group's
// products leave the tile as whole numbers and are scaled as those of a few rows are: the same bits.
#pragma once

#include "kernels/cpu/panel.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

constexpr int kTileRows = 16;

#if defined(__AMX_INT8__)
// From so many rows on tiles are used.
constexpr int kLeastTileRows = 8;

// What LDTILECFG reads. Tiles 0 and 1 are sums, 2 and 3 rows, 4 and 5 columns.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  TileShapes(int count, int group) {
    for (int tile = 0; tile < 6; ++tile) {
      const bool of_rows = tile == 2 || tile == 3, of_columns = tile >= 4;
      row_bytes[tile] = static_cast<uint16_t>(of_rows ? group : 64);
      rows[tile] = static_cast<uint8_t>(of_columns ? group / 4 : count);
    }
  }
};

inline void begin_tiles(int rows, int group) {
  const TileShapes shapes(rows, group);
  _tile_loadconfig(&shapes);
}
inline void end_tiles() { _tile_release(); }

// dots[i] = the products of 16 columns of the panel in group i of two with `rows` rows.
template <int kGroup>
inline void two_group_dots(const Panel& panel, int v, const CodedPart* in, int at, int32_t (&dots)[2][kTileRows][16]) {
  constexpr int kStride = sizeof panel.words[0];
  _tile_zero(0);
  _tile_loadd(2, in->codes + at, sizeof *in);
  _tile_loadd(4, panel.words[at / 4] + v * kLanes, kStride);
  _tile_dpbssd(0, 2, 4);
  _tile_zero(1);
  _tile_loadd(3, in->codes + at + kGroup, sizeof *in);
  _tile_loadd(5, panel.words[(at + kGroup) / 4] + v * kLanes, kStride);
  _tile_dpbssd(1, 3, 5);
  _tile_stored(0, dots[0], sizeof dots[0][0]);
  _tile_stored(1, dots[1], sizeof dots[1][0]);
}
#else
constexpr int kLeastTileRows = 1 << 30;
inline void begin_tiles(int, int) {}
inline void end_tiles() {}
template <int kGroup>
inline void two_group_dots(const Panel&, int, const CodedPart*, int, int32_t (&)[2][kTileRows][16]) {}
#endif

}  // namespace
}  // namespace kvasir::KVASIR_LEVEL
