// What AMX's tiles are, as LDTILECFG reads it.
#pragma once

#include <cstdint>

// Whether this level has tiles. Clang up to 15 and GCC write the same macros in two ways.
#if (defined(__AMX_INT8__) && defined(__AMX_BF16__)) || (defined(__AMXINT8__) && defined(__AMXBF16__))
#define KVASIR_TILES 1
#else
#define KVASIR_TILES 0
#endif

namespace kvasir::KVASIR_LEVEL {

struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // of each tile
  uint8_t rows[16] = {};

  void set(int tile, int its_rows, int its_row_bytes) {
    rows[tile] = static_cast<uint8_t>(its_rows);
    row_bytes[tile] = static_cast<uint16_t>(its_row_bytes);
  }
};
static_assert(sizeof(TileShapes) == 64, "what the instruction reads");

}  // namespace kvasir::KVASIR_LEVEL
