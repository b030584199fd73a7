// How pages with labels, and the vectors that labels refer to, lie in device memory.
//
//   head block   labels of the keys, labels of the values (128 bytes each, also where a side has none), then the head
//                block of the residuals as fragments.h has it
//   table        of one side of one kv head: tiles of 16 vectors in float16, in the order of fragments
//
// A tile of key vectors is laid out as the keys of a row tile are, and one of value vectors as its values: a product
// with queries, or a sum over vectors, is then one 128-bit load a lane and one mma for 16 x 16 elements. Tables only
// grow. A table's memory is whole tiles, and vectors that were never written are zeros.
#pragma once

#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

constexpr int kMaxVisible = 255;  // vectors that one page can refer to

// The label of a key: a lane of scores has tokens g, g + 8, ... (g = lane / 4), and loads their labels at once.
KVASIR_HOST_DEVICE constexpr int key_label_byte(int token) { return token % 8 * 16 + token / 8; }

// The label of a value, from the start of the head block: lane % 4 decides which tokens a lane has in an A fragment
// (fragment_byte), and it loads those of all four steps at once.
KVASIR_HOST_DEVICE constexpr int value_label_byte(int token) {
  return kLabelBytes + token % 8 / 2 * 32 + token / 16 * 4 + token % 2 * 2 + token % 16 / 8;
}

struct VectorTableLayout {
  int head_dim;

  KVASIR_HOST_DEVICE constexpr int tile_bytes() const { return kTileSize * head_dim * 2; }
  KVASIR_HOST_DEVICE constexpr int64_t bytes(int vectors) const {
    return static_cast<int64_t>((vectors + kTileSize - 1) / kTileSize) * tile_bytes();
  }
  KVASIR_HOST_DEVICE constexpr int64_t key_byte(int vector, int channel) const {
    return static_cast<int64_t>(vector / kTileSize) * tile_bytes() + channel / 16 * kGroupBytes +
           fragment_byte16(channel, vector);
  }
  KVASIR_HOST_DEVICE constexpr int64_t value_byte(int vector, int channel) const {
    return static_cast<int64_t>(vector / kTileSize) * tile_bytes() + channel / 16 * kGroupBytes +
           fragment_byte16(vector, channel);
  }
};

// The vectors that labels of one side refer to (docs/format.md, "Side table"). Page
// p of the sequence sees the `fixed` mined vectors and the newest of those that pages first_page .. p have added.
struct VectorTable {
  const uint8_t* vectors;  // of kv head 0; null where there are none
  int64_t head_stride;     // bytes from one kv head's vectors to the next one's
  int32_t fixed;           // mined vectors, 0..255
  int32_t added;           // vectors after those, one a page
  int32_t first_page;      // the page that added the first of them, counted from `pages`; may be negative
  int32_t unused;
};

// Memory that vectors are written to, of one side.
struct VectorMemory {
  uint8_t* vectors;     // of kv head 0; null: this side is left out
  int64_t head_stride;  // bytes
};

}  // namespace kvasir::cuda
