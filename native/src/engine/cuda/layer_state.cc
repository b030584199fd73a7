#include "engine/cuda/layer_state.h"

#include <algorithm>
#include <cstring>

#include "engine/cuda/status.h"
#include "kernels/cuda/pattern_layout.h"

namespace kvasir::cuda {
namespace {

void upload(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "uploading a sequence's description");
}

}  // namespace

CudaLayerState::CudaLayerState(const DeviceLayer& layer, DeviceArena& arena, cudaStream_t stream)
    : layer_(layer), arena_(arena), stream_(stream), description_(arena, sizeof(DecodeSequence)) {}

void CudaLayerState::reserve(int64_t pages) {
  if (pages <= capacity_) return;
  const int64_t capacity = std::max(pages, capacity_ * 3 / 2 + 64);
  DeviceScratch references(arena_, static_cast<size_t>(capacity) * sizeof(uint64_t));
  addresses_ = DeviceScratch(arena_, static_cast<size_t>(capacity) * sizeof(uint8_t*));
  references_ = std::move(references);
  capacity_ = capacity;
  page_count_ = -1;
}

void CudaLayerState::update(const SequenceView& view, uint64_t epoch) {
  if (view.first_page != first_page_ || view.page_count != page_count_ || epoch != epoch_) update_pages(view);
  epoch_ = epoch;
  for (Side side : {Side::kKeys, Side::kValues}) {
    if (layer_.kind(side) == SideKind::kPattern) update_table(view, side);
  }

  // What the newest token sees.
  const AttentionLayer& attention = layer_.plan().attention;
  const int64_t oldest = attention.sliding_window > 0 ? view.length - attention.sliding_window : 0;
  const int64_t window_position = view.length - view.window;
  const int64_t page_position = window_position - view.page_count * kPageTokens;
  const int64_t hidden = std::clamp<int64_t>(oldest - page_position, 0, view.page_count * kPageTokens);
  DecodeSequence now = {};
  now.pages = references_.as<uint64_t>() + hidden / kPageTokens;
  now.page_count = static_cast<int32_t>(view.page_count - hidden / kPageTokens);
  now.hidden_tokens = now.page_count > 0 ? static_cast<int32_t>(hidden % kPageTokens) : 0;
  const int64_t stride = layer_.head_stride();
  now.sinks = {view.storage, stride, static_cast<int32_t>(std::clamp<int64_t>(oldest, 0, view.sinks)), view.sinks};
  now.window = {view.storage + layer_.window_offset(), stride,
                static_cast<int32_t>(std::clamp<int64_t>(oldest - window_position, 0, view.window)), view.window};
  now.key_patterns = tables_[0].table;
  now.value_patterns = tables_[1].table;
  // Tables count pages from the first that is listed.
  now.key_patterns.first_page -= static_cast<int32_t>(hidden / kPageTokens);
  now.value_patterns.first_page -= static_cast<int32_t>(hidden / kPageTokens);
  if (std::memcmp(&now, &latest_, sizeof now) == 0) return;
  latest_ = now;
  upload(description_.as<void>(), &latest_, sizeof latest_, stream_);
}

void CudaLayerState::update_pages(const SequenceView& view) {
  // Pages at the front that were listed already stay; a shrink changes any of them.
  std::vector<uint64_t> references;
  std::vector<const uint8_t*> addresses;
  for (int64_t i = 0; i < view.page_count; ++i) {
    const PageView& page = *view.pages[i];
    references.push_back(page_reference(page.data, layer_.level_of(*page.shape)));
    addresses.push_back(page.data);
  }
  if (!references.empty()) {
    upload(references_.as<void>(), references.data(), references.size() * sizeof(uint64_t), stream_);
    upload(addresses_.as<void>(), addresses.data(), addresses.size() * sizeof(uint8_t*), stream_);
  }
  first_page_ = view.first_page;
  page_count_ = view.page_count;
}

void CudaLayerState::update_table(const SequenceView& view, Side side) {
  Table& known = tables_[static_cast<int>(side)];
  const SideTable& table = *view.tables[static_cast<int>(side)];
  const RowShape shape = layer_.row_shape();
  const PatternTableLayout layout = {shape.head_dim};
  std::vector<const uint16_t*> vectors = side_vectors(table, 0, shape.head_dim);
  const auto count = static_cast<int64_t>(vectors.size());

  // Whole tiles are uploaded, from the first that has something new.
  size_t same = 0;
  while (same < vectors.size() && same < known.vectors.size() && vectors[same] == known.vectors[same]) ++same;
  if (count > known.capacity) {
    known.capacity = std::max<int64_t>(count, known.capacity * 3 / 2 + 64);
    known.capacity = (known.capacity + kTileSize - 1) / kTileSize * kTileSize;
    known.memory = DeviceScratch(arena_, static_cast<size_t>(layout.bytes(static_cast<int>(known.capacity))) *
                                             static_cast<size_t>(shape.kv_heads));
    same = 0;
  }
  const int64_t head_stride = layout.bytes(static_cast<int>(known.capacity));
  if (count > 0 && same < vectors.size()) {
    const int first = static_cast<int>(same) / kTileSize * kTileSize;
    const int64_t begin = layout.bytes(first), bytes = layout.bytes(static_cast<int>(count)) - begin;
    std::vector<uint8_t> tiles(static_cast<size_t>(bytes) * shape.kv_heads);
    for (int head = 0; head < shape.kv_heads; ++head) {
      const std::vector<const uint16_t*> rows = side_vectors(table, head, shape.head_dim);
      uint8_t* out = tiles.data() + static_cast<size_t>(bytes) * head;
      for (int v = first; v < static_cast<int>(count); ++v) {
        for (int c = 0; c < shape.head_dim; ++c) {
          const int64_t byte = side == Side::kKeys ? layout.key_byte(v, c) : layout.value_byte(v, c);
          std::memcpy(out + byte - begin, rows[v] + c, sizeof(uint16_t));
        }
      }
    }
    check(cudaMemcpy2DAsync(known.memory.as<uint8_t>() + begin, static_cast<size_t>(head_stride), tiles.data(),
                            static_cast<size_t>(bytes), static_cast<size_t>(bytes), static_cast<size_t>(shape.kv_heads),
                            cudaMemcpyHostToDevice, stream_),
          "uploading patterns");
  }
  known.vectors = std::move(vectors);
  known.table = {};
  if (count == 0) return;
  known.table.vectors = known.memory.as<uint8_t>();
  known.table.head_stride = head_stride;
  known.table.fixed = table.chunks.front().rows;
  known.table.added = static_cast<int32_t>(count) - known.table.fixed;
  known.table.first_page = table.chunks.size() > 1 ? static_cast<int32_t>(table.chunks[1].page - view.first_page) : 0;
}

}  // namespace kvasir::cuda
