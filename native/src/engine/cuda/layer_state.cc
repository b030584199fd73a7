#include "engine/cuda/layer_state.h"

#include <algorithm>
#include <cstring>

#include "engine/cuda/status.h"
#include "kernels/cuda/layout/labels.h"

namespace kvasir::cuda {

static_assert(sizeof(DeviceSequence) % sizeof(uint64_t) == 0, "pieces are of so many bytes");

CudaLayerState::CudaLayerState(const DeviceLayer& layer)
    : layer_(layer),
      description_(layer.queue().take(description_bytes(layer))),
      blocks_(static_cast<size_t>(layer.row_blocks())),
      description_bytes_(description_.bytes()) {}

void CudaLayerState::replace(DeviceScratch& memory, size_t bytes) {
  retired_.reserve(retired_.size() + 1);
  DeviceScratch next = layer_.queue().take(bytes);
  if (memory) retired_.push_back(std::move(memory));
  memory = std::move(next);
}

void CudaLayerState::reserve(int64_t pages, const SideTable (&tables)[2]) {
  for (Side side : {Side::kKeys, Side::kValues}) {
    const SideTable& table = tables[static_cast<int>(side)];
    if (table.size() > 0) reserve_vectors(side, table, table.size());
  }
  if (pages <= capacity_) return;
  const int64_t capacity = std::max(pages, capacity_ * 3 / 2 + 64);
  reference_list_.reserve(static_cast<size_t>(capacity));
  replace(references_, static_cast<size_t>(capacity) * sizeof(uint64_t));
  capacity_ = capacity;
  page_count_ = -1;
}

void CudaLayerState::update(const SequenceView& view, uint64_t epoch, Pieces* pieces) {
  if (view.first_page != first_page_ || view.page_count != page_count_ || epoch != epoch_) update_pages(view);
  epoch_ = epoch;
  for (Side side : {Side::kKeys, Side::kValues}) {
    if (!layer_.plan().codecs[static_cast<int>(side)]->grow) continue;
    const SideTable& table = *view.tables[static_cast<int>(side)];
    upload_vectors(side, table);
    tables_[static_cast<int>(side)].table = describe(side, table, view.first_page);
  }
  update_description(view, pieces);
  retired_.clear();
  std::vector<uint8_t>().swap(tiles_);  // was reserved for both sides
}

void CudaLayerState::update_description(const SequenceView& view, Pieces* pieces) {
  const int64_t sliding_window = layer_.plan().attention.sliding_window;
  const DeviceSequence now = seen_before(view, 0, sliding_window > 0 ? view.length - sliding_window : 0);
  bool moved = false;
  const auto list = [&](const uint8_t* const* from, int rows, int first, int end) {
    for (int i = first; i < end; ++i) {
      const bool there = (i - first) * kTileSize < rows;
      const uint64_t address = there ? reinterpret_cast<uint64_t>(from[i - first]) : 0;
      moved |= address != blocks_[static_cast<size_t>(i)];
      blocks_[static_cast<size_t>(i)] = address;
    }
  };
  list(view.sink_blocks, view.sinks, 0, layer_.sink_blocks());
  list(view.window_blocks, view.window, layer_.sink_blocks(), layer_.row_blocks());
  const bool changed = std::memcmp(&now, &latest_, sizeof now) != 0;
  latest_ = now;
  if (!moved && !changed) return;
  std::memcpy(description_bytes_.data(), &now, sizeof now);
  std::memcpy(description_bytes_.data() + sizeof now, blocks_.data(), blocks_.size() * sizeof(uint64_t));
  const size_t bytes = moved ? description_bytes_.size() : sizeof now;
  if (pieces) return pieces->add(description_.as<void>(), description_bytes_.data(), bytes);
  layer_.queue().upload(description_.as<void>(), description_bytes_.data(), bytes, "describing a sequence");
}

DeviceSequence CudaLayerState::seen_before(const SequenceView& view, int64_t newer, int64_t oldest) const {
  const int64_t end = view.length - newer;
  oldest = std::min(oldest, end);
  const int64_t window_position = view.length - view.window;
  const int64_t page_position = window_position - view.page_count * kPageTokens;
  const int64_t hidden = std::clamp<int64_t>(oldest - page_position, 0, view.page_count * kPageTokens);
  DeviceSequence now = {};
  now.pages = listed_ + hidden / kPageTokens;
  now.page_count = static_cast<int32_t>(view.page_count - hidden / kPageTokens);
  now.hidden_tokens = now.page_count > 0 ? static_cast<int32_t>(hidden % kPageTokens) : 0;
  now.sinks = {blocks_there(), static_cast<int32_t>(std::clamp<int64_t>(oldest, 0, view.sinks)),
               static_cast<int32_t>(std::min<int64_t>(end, view.sinks))};
  now.window = {blocks_there() + layer_.sink_blocks(),
                static_cast<int32_t>(std::clamp<int64_t>(oldest - window_position, 0, view.window)),
                static_cast<int32_t>(std::max<int64_t>(view.window - newer, 0))};
  now.key_vectors = tables_[0].table;
  now.value_vectors = tables_[1].table;
  // Tables count pages from the first that is listed.
  now.key_vectors.first_page -= static_cast<int32_t>(hidden / kPageTokens);
  now.value_vectors.first_page -= static_cast<int32_t>(hidden / kPageTokens);
  return now;
}

void CudaLayerState::update_pages(const SequenceView& view) {
  // All of them: a shrink changes any, and a sealed page costs far more than a list.
  reference_list_.clear();
  for (int64_t i = 0; i < view.page_count; ++i) {
    const PageView& page = *view.pages[i];
    reference_list_.push_back(page_reference(page.data, layer_.level_of(*page.shape)));
  }
  if (!reference_list_.empty()) {
    layer_.queue().upload(references_.as<void>(), reference_list_.data(), reference_list_.size() * sizeof(uint64_t),
                          "listing pages");
  }
  listed_ = references_.as<uint64_t>();
  first_page_ = view.first_page;
  page_count_ = view.page_count;
}

VectorMemory CudaLayerState::room_for(Side side, const SideTable& table, int64_t wanted) {
  reserve_vectors(side, table, wanted);
  upload_vectors(side, table);
  const Table& known = tables_[static_cast<int>(side)];
  return {known.memory.as<uint8_t>(),
          VectorTableLayout{layer_.row_shape().head_dim}.bytes(static_cast<int>(known.capacity))};
}

void CudaLayerState::reserve_vectors(Side side, const SideTable& table, int64_t wanted) {
  Table& known = tables_[static_cast<int>(side)];
  const RowShape shape = layer_.row_shape();
  const VectorTableLayout layout = {shape.head_dim};
  known.vectors.reserve(static_cast<size_t>(wanted));
  if (wanted > known.capacity) {
    const int64_t capacity =
        (std::max<int64_t>(wanted, known.capacity * 3 / 2 + 64) + kTileSize - 1) / kTileSize * kTileSize;
    replace(known.memory,
            static_cast<size_t>(layout.bytes(static_cast<int>(capacity))) * static_cast<size_t>(shape.kv_heads));
    known.capacity = capacity;
    known.vectors.clear();
    check(cudaMemsetAsync(known.memory.as<void>(), 0, known.memory.bytes(), layer_.queue().stream), "clearing vectors");
  }
  const int first = static_cast<int>(known_of(side, table)) / kTileSize * kTileSize;
  const int64_t bytes = layout.bytes(table.size()) - layout.bytes(std::min(first, table.size()));
  tiles_.reserve(static_cast<size_t>(bytes) * shape.kv_heads);
}

int CudaLayerState::known_of(Side side, const SideTable& table) const {
  const std::vector<const uint16_t*>& known = tables_[static_cast<int>(side)].vectors;
  int same = 0;
  for_each_vector(table, 0, layer_.row_shape().head_dim, [&](int index, const uint16_t* vector) {
    const auto i = static_cast<size_t>(index);
    same += same == index && i < known.size() && known[i] == vector;
  });
  return same;
}

// Whole tiles, from the first that has something new.
void CudaLayerState::upload_vectors(Side side, const SideTable& table) {
  Table& known = tables_[static_cast<int>(side)];
  const RowShape shape = layer_.row_shape();
  const VectorTableLayout layout = {shape.head_dim};
  const int count = table.size(), same = known_of(side, table);
  known.vectors.resize(static_cast<size_t>(same));
  if (same == count) return;
  const int first = same / kTileSize * kTileSize;
  const int64_t begin = layout.bytes(first), bytes = layout.bytes(count) - begin;
  tiles_.assign(static_cast<size_t>(bytes) * shape.kv_heads, 0);
  for (int head = 0; head < shape.kv_heads; ++head) {
    uint8_t* out = tiles_.data() + static_cast<size_t>(bytes) * head;
    for_each_vector(table, head, shape.head_dim, [&](int v, const uint16_t* vector) {
      for (int c = 0; v >= first && c < shape.head_dim; ++c) {
        std::memcpy(out + byte_of(side, v, c) - begin, vector + c, 2);
      }
      if (head == 0 && v >= same) known.vectors.push_back(vector);
    });
  }
  check(cudaMemcpy2DAsync(known.memory.as<uint8_t>() + begin,
                          static_cast<size_t>(layout.bytes(static_cast<int>(known.capacity))), tiles_.data(),
                          static_cast<size_t>(bytes), static_cast<size_t>(bytes), static_cast<size_t>(shape.kv_heads),
                          cudaMemcpyHostToDevice, layer_.queue().stream),
        "uploading vectors");
}

void CudaLayerState::read_vectors(Side side, int first, int count, uint16_t* out) const {
  const Table& known = tables_[static_cast<int>(side)];
  const RowShape shape = layer_.row_shape();
  const VectorTableLayout layout = {shape.head_dim};
  const int64_t begin = layout.bytes(first / kTileSize * kTileSize), bytes = layout.bytes(first + count) - begin;
  std::vector<uint8_t> tiles(static_cast<size_t>(bytes) * shape.kv_heads);
  check(
      cudaMemcpy2DAsync(tiles.data(), static_cast<size_t>(bytes), known.memory.as<uint8_t>() + begin,
                        static_cast<size_t>(layout.bytes(static_cast<int>(known.capacity))), static_cast<size_t>(bytes),
                        static_cast<size_t>(shape.kv_heads), cudaMemcpyDeviceToHost, layer_.queue().stream),
      "reading vectors");
  check(cudaStreamSynchronize(layer_.queue().stream), "reading vectors");
  for (int head = 0; head < shape.kv_heads; ++head) {
    const uint8_t* from = tiles.data() + static_cast<size_t>(bytes) * head - begin;
    for (int i = 0; i < count; ++i) {
      const int row = first == 0 ? head * count + i : i * shape.kv_heads + head;
      uint16_t* to = out + static_cast<size_t>(row) * shape.head_dim;
      for (int c = 0; c < shape.head_dim; ++c) std::memcpy(to + c, from + byte_of(side, first + i, c), 2);
    }
  }
}

VectorTable CudaLayerState::describe(Side side, const SideTable& table, int64_t first_page) const {
  const Table& known = tables_[static_cast<int>(side)];
  VectorTable result = {};
  if (table.chunks.empty()) return result;
  result.vectors = known.memory.as<uint8_t>();
  result.head_stride = VectorTableLayout{layer_.row_shape().head_dim}.bytes(static_cast<int>(known.capacity));
  result.fixed = table.chunks.front().rows;
  result.added = table.size() - result.fixed;
  if (result.added > 0) result.first_page = static_cast<int32_t>(table.chunks[1].page - first_page);
  return result;
}

int64_t CudaLayerState::byte_of(Side side, int vector, int channel) const {
  const VectorTableLayout layout = {layer_.row_shape().head_dim};
  return side == Side::kKeys ? layout.key_byte(vector, channel) : layout.value_byte(vector, channel);
}

}  // namespace kvasir::cuda
