// Attention over compressed sequences: splits each into tiles, runs the tiles of all query heads of a kv head at once,
// and merges the softmax states. Knows pages only as bytes with a format, and no codec by name.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/page_turns.h"
#include "base/thread_pool.h"
#include "codecs/side_table.h"
#include "kernels/kernels.h"

namespace kvasir {

// How a page is stored: first the parts of all kv heads for the keys, then those for the values. Where a side's parts
// vary in size, the page begins with a table of the offsets of all its parts and of its end.
struct PageShape {
  PageFormat formats[2];  // by Side
  int kv_heads = 0;
  int width = 0;  // of the sides that can still shrink, the widest (PageFormat::width); 0 where none can

  bool varies() const { return formats[0].varies() || formats[1].varies(); }
  // A part holds one kv head, or all of them.
  int parts(Side side) const { return kv_heads / formats[static_cast<int>(side)].heads; }
  int parts() const { return parts(Side::kKeys) + parts(Side::kValues); }
  int part_of(Side side, int kv_head) const { return kv_head / formats[static_cast<int>(side)].heads; }
  size_t table_bytes() const { return varies() ? (sizeof(uint32_t) * (parts() + 1) + 63) / 64 * 64 : 0; }

  // Where nothing varies.
  size_t part_offset(Side side, int kv_head) const {
    const size_t keys = formats[0].page_bytes * (side == Side::kValues ? parts(Side::kKeys) : 0);
    return keys + formats[static_cast<int>(side)].page_bytes * part_of(side, kv_head);
  }
  // The bytes of a page, but for the parts that vary.
  size_t bytes() const {
    return table_bytes() + formats[0].page_bytes * parts(Side::kKeys) + formats[1].page_bytes * parts(Side::kValues);
  }
};

// A sealed page as readers see it. Pages of one layer may have different shapes.
struct PageView {
  const uint8_t* data = nullptr;
  const PageShape* shape = nullptr;
  const uint32_t* offsets = nullptr;  // of each part and of the end, from `data`; null where nothing varies

  const PageFormat& format(Side side) const { return shape->formats[static_cast<int>(side)]; }
  size_t part_offset(Side side, int kv_head) const {
    return offsets ? offsets[part_index(side, kv_head)] : shape->part_offset(side, kv_head);
  }
  const uint8_t* part(Side side, int kv_head) const { return data + part_offset(side, kv_head); }
  // Of all of it, in the layout of docs/format.md.
  size_t bytes() const { return offsets ? offsets[shape->parts()] : shape->bytes(); }
  size_t part_bytes(Side side, int kv_head) const {
    if (!offsets) return format(side).page_bytes;
    return offsets[part_index(side, kv_head) + 1] - offsets[part_index(side, kv_head)];
  }

 private:
  int part_index(Side side, int kv_head) const {
    return (side == Side::kValues ? shape->parts(Side::kKeys) : 0) + shape->part_of(side, kv_head);
  }
};

class LayerState;

// What is the same for all sequences of a layer.
struct AttentionLayer {
  int query_heads;
  int kv_heads;
  int head_dim;
  // Where keys and values share a row (CacheConfig::set_latent): its channels, and how many of them, from the first on,
  // are the values; else 0. There is one kv head then, and what is stored as keys and values of kv_heads heads of
  // head_dim are the two halves of the row, in slices.
  int row_dim;
  int value_dim;
  int64_t sliding_window;  // 0: none
  float softmax_scale;
  float soft_cap;            // scores become soft_cap * tanh(score / soft_cap); 0: none
  const float* sink_logits;  // [query_heads]: scores without a value, in every softmax; null: none
  bool fast;
  PageFormat formats[2];  // by Side: what is the same in all shapes of the layer's pages
  CodecKernels codecs[2];
  const RowKernels* rows;
  const float* key_scaling;  // [kv_heads][head_dim], multiplies queries; null: none
  const PageTurns* turns;    // keys are stored before RoPE, which attention applies; null: they are not
  RopePairs pairs;

  bool latent() const { return row_dim > 0; }
  int query_dim() const { return latent() ? row_dim : head_dim; }
  int output_dim() const { return latent() ? value_dim : head_dim; }
  // Kv heads as queries see them, and query heads of each.
  int attended_heads() const { return latent() ? 1 : kv_heads; }
  int group() const { return query_heads / attended_heads(); }
};

// From token `first` on, up to the next of its kind, positions are token numbers plus `offset`.
struct PositionShift {
  int64_t first;
  int64_t offset;
};

// One layer of one sequence: sinks, then pages, then the window. Positions count tokens from 0.
struct SequenceView {
  int64_t length;
  int sinks;                            // 16-bit rows, positions 0 .. sinks - 1
  int window;                           // 16-bit rows, positions length - window .. length - 1
  const uint8_t* const* sink_blocks;    // of kRowBlockTokens rows, as its engine keeps them: row r is row
  const uint8_t* const* window_blocks;  // r % kRowBlockTokens of block r / kRowBlockTokens
  const PageView* const* pages;         // held pages, oldest first; they end where the window begins
  int64_t page_count;
  int64_t first_page;                     // number of the oldest held page, counted from the sinks on
  const SideTable* tables[2];             // by side; empty where the codec has none
  const PositionShift* shifts = nullptr;  // ascending; before the first of them the offset is 0
  int shift_count = 0;
  LayerState* state = nullptr;  // the engine's own
};

// Where this machine keeps row `row` of a head. A block is [side][kv_heads][kRowBlockTokens][head_dim], float16.
inline const uint16_t* half_row(const AttentionLayer& layer, const uint8_t* const* blocks, Side side, int kv_head,
                                int64_t row) {
  const size_t head = static_cast<size_t>(side == Side::kValues ? layer.kv_heads : 0) + kv_head;
  const auto in_block = static_cast<size_t>(row % kRowBlockTokens);
  return reinterpret_cast<const uint16_t*>(blocks[row / kRowBlockTokens]) +
         (head * kRowBlockTokens + in_block) * layer.head_dim;
}

// The queries of one sequence, for its newest tokens. Query i sees all that came before these, and of these those up to
// its own; or with masks those whose bits are set, the window of a layer that slides already taken into account.
struct QueryRun {
  int64_t first;  // row of the first among those of all sequences
  int tokens;
  const uint64_t* masks = nullptr;  // [tokens]
  const int* depths = nullptr;      // [tokens], with masks: positions of tokens, counted from the first

  // Position of query i in a sequence of this length.
  int64_t position(int64_t length, int i) const { return length - tokens + (masks ? depths[i] : i); }
};

struct AttentionRequest {
  const AttentionLayer* layer;
  const SequenceView* sequences;
  const QueryRun* runs;  // of each sequence
  int count;
  const float* queries;  // [rows][query_heads][query_dim]
  float* outputs;        // [rows][query_heads][output_dim]
  float* log_sums;       // [rows][query_heads], or null
  bool sink_logits;      // whether those of the layer count

  int64_t rows() const { return runs[count - 1].first + runs[count - 1].tokens - runs[0].first; }
};

// Returns the number of page tiles that were computed.
int64_t attend(const AttentionRequest& request, ThreadPool& pool);

}  // namespace kvasir
