#include "engine/cuda/cuda_append.h"

#include <algorithm>
#include <cstring>

#include "base/kmeans.h"
#include "base/thread_pool.h"
#include "codecs/pattern/format.h"
#include "engine/cuda/status.h"
#include "kernels/cuda/encode.h"
#include "kernels/cuda/kmeans.h"
#include "kernels/cuda/seal_patterns.h"

namespace kvasir::cuda {

int64_t CudaAppend::new_sinks() const { return std::clamp<int64_t>(plan_.sinks - before_.length, 0, tokens_); }

size_t CudaAppend::side_halves() const {
  return static_cast<size_t>(staging_.rows) * plan_.attention.kv_heads * plan_.attention.head_dim;
}

void CudaAppend::open(const SequenceView& before, int64_t pages) {
  before_ = before;
  pages_ = pages;
  if (pages == 0) return;
  const int64_t sinks = new_sinks();
  staging_.rows = before.window + tokens_ - sinks;
  staging_memory_ = DeviceScratch(arena_, 2 * side_halves() * sizeof(uint16_t));
  staging_.sides[0] = staging_memory_.as<uint16_t>();
  staging_.sides[1] = staging_.sides[0] + side_halves();
  if (before.window > 0) {
    const RowTiles tiles = layer_.tiles(const_cast<uint8_t*>(before.storage));
    check(gather_rows(layer_.row_shape(), tiles, layer_.tile_row(plan_.sinks), before.window, staging_, 0, stream_),
          "gathering the window");
  }
  check(stage_rows(layer_.row_shape(), input_, sinks, tokens_ - sinks, staging_, before.window, stream_),
        "staging rows");
}

void CudaAppend::rows(Side side, int kv_head, int64_t first, int64_t count, float* out, int stride) const {
  std::call_once(downloaded_, [this] {
    halves_.resize(2 * side_halves());
    check(cudaMemcpyAsync(halves_.data(), staging_memory_.as<void>(), halves_.size() * sizeof(uint16_t),
                          cudaMemcpyDeviceToHost, stream_),
          "reading rows back");
    check(cudaStreamSynchronize(stream_), "reading rows back");
  });
  const auto d = static_cast<size_t>(plan_.attention.head_dim);
  const int64_t begin = (before_.first_page + before_.page_count) * kPageTokens;
  const uint16_t* head =
      halves_.data() + (side == Side::kValues ? side_halves() : 0) + static_cast<size_t>(kv_head) * staging_.rows * d;
  for (int64_t i = 0; i < count; ++i) {
    plan_.attention.rows->from_half(head + static_cast<size_t>(first + i - begin) * d, d,
                                    out + static_cast<size_t>(i) * stride);
  }
}

bool CudaAppend::grow(Side side, SealInput& input, SideTable& table, LayerState* state) {
  if (!layer_.labels()) return false;
  const int index = static_cast<int>(side);
  const PageFormat& format = plan_.attention.formats[index];
  const bool mining = table.chunks.empty();
  if (!mining && format.numbers[pattern::kNewPatterns] == 0) return true;
  const int64_t points = std::min(input.tokens, pattern::kMiningPoints);
  const auto patterns = static_cast<int64_t>(format.numbers[pattern::kPatterns]);
  const int added = static_cast<int>(mining ? std::min(patterns, points) : input.page_count);
  const int first = table.size();
  auto& known = static_cast<CudaLayerState&>(*state);
  PatternVectors vectors[2] = {};
  vectors[index] = known.room_for(side, table, first + added);
  if (mining) {
    const DeviceScratch scratch(arena_, mining_scratch_bytes(layer_.row_shape(), points));
    const KMeansOptions options;
    MiningRequest request = {};
    request.shape = layer_.row_shape();
    request.staging = staging_;
    request.tokens = input.tokens;
    request.points = points;
    request.clusters = added;
    request.max_steps = options.max_steps;
    request.tolerance = static_cast<float>(options.tolerance);
    request.seed = options.seed;
    request.vectors[index] = vectors[index];
    request.scratch = scratch.as<void>();
    check(mine_patterns(request, stream_), "mining patterns");
  } else {
    CentreRequest request = {};
    request.shape = layer_.row_shape();
    request.staging = staging_;
    request.page_count = input.page_count;
    request.vectors[index] = vectors[index];
    request.first_vector[index] = first;
    check(add_centres(request, stream_), "adding patterns");
  }
  const std::shared_ptr<uint16_t> copy = input.take(int64_t{input.kv_heads} * added * format.head_dim);
  known.read_vectors(side, first, added, copy.get());
  if (mining) {
    table.chunks.push_back({copy, added, 0});
    return true;
  }
  // Chunks after the first have one vector a head; `copy` has them page by page.
  for (int i = 0; i < added; ++i) {
    const std::shared_ptr<const uint16_t> one(copy, copy.get() + int64_t{i} * input.kv_heads * format.head_dim);
    table.chunks.push_back({one, 1, input.first_page + i});
  }
  return true;
}

void CudaAppend::seal(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2],
                      LayerState* state) {
  if (layer_.family() == PageFamily::kTiered) return encode_here(pages, heads, tables);
  if (layer_.labels()) return encode_patterns(pages, tables, static_cast<const CudaLayerState&>(*state));
  const bool keys = layer_.kind(Side::kKeys) == SideKind::kCodes;
  const bool values = layer_.kind(Side::kValues) == SideKind::kCodes;
  if (!keys || !values) encode_here(pages, heads, tables);
  if (keys || values) encode_on_device(pages, keys, values);
}

void CudaAppend::encode_patterns(const std::vector<NewPage>& pages, const SideTable (&tables)[2],
                                 const CudaLayerState& state) {
  PatternSealRequest request = {};
  request.shape = layer_.row_shape();
  for (Side side : {Side::kKeys, Side::kValues}) {
    const int index = static_cast<int>(side);
    const PageFormat& format = plan_.attention.formats[index];
    request.bits[index] = format.bits;
    request.options[index] = {true, format.numbers[pattern::kSquaredMetric] != 0,
                              format.numbers[pattern::kAcceptTest] != 0, format.numbers[pattern::kAcceptRatio]};
    request.tables[index] = state.describe(side, tables[index], 0);
  }
  std::vector<uint8_t*> addresses;
  for (const NewPage& page : pages) addresses.push_back(page.data);
  request.staging = staging_;
  request.first_page = pages[0].number;
  request.pages = addresses.data();
  request.page_count = static_cast<int64_t>(addresses.size());
  check(seal_pattern_pages(request, stream_), "sealing pages");
}

void CudaAppend::encode_on_device(const std::vector<NewPage>& pages, bool keys, bool values) {
  // Runs of pages of one shape: mixed widths come in order.
  const bool wanted[2] = {keys, values};
  for (size_t begin = 0; begin < pages.size();) {
    size_t end = begin;
    while (end < pages.size() && pages[end].view->shape == pages[begin].view->shape) ++end;
    const PageShape& shape = *pages[begin].view->shape;
    // Where parts vary in size, each side has its own way to where it begins.
    for (int side = 0; side < 2; ++side) {
      if (!wanted[side] || (side == 1 && wanted[0] && !shape.varies())) continue;
      const bool both = wanted[0] && wanted[1] && !shape.varies();
      EncodeRequest request = {};
      request.shape = layer_.row_shape();
      std::vector<uint8_t*> addresses;
      for (size_t i = begin; i < end; ++i) {
        addresses.push_back(pages[i].data +
                            (shape.varies() ? pages[i].view->part_offset(static_cast<Side>(side), 0) : 0));
      }
      for (int s = 0; s < 2; ++s) {
        if (both || s == side) request.sides[s] = layer_.sides(shape)[s];
      }
      request.staging = staging_;
      request.first_row = static_cast<int64_t>(begin) * kPageTokens;
      request.pages = addresses.data();
      request.page_count = static_cast<int64_t>(addresses.size());
      check(encode_pages(request, stream_), "sealing pages");
    }
    begin = end;
  }
}

void CudaAppend::encode_here(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2]) {
  const int parts = plan_.shapes[0].parts();
  const bool tiered = layer_.family() == PageFamily::kTiered;
  const bool here[2] = {tiered || layer_.kind(Side::kKeys) != SideKind::kCodes,
                        tiered || layer_.kind(Side::kValues) != SideKind::kCodes};
  const auto bytes_of = [](const NewPage& page) {
    const PageShape& shape = *page.view->shape;
    return shape.varies() ? page.view->offsets[shape.parts()] : shape.bytes();
  };
  std::vector<std::vector<uint8_t>> canonical(pages.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    const PageShape& shape = *pages[i].view->shape;
    canonical[i].resize(bytes_of(pages[i]));
    if (shape.varies()) {
      std::memcpy(canonical[i].data(), pages[i].view->offsets, sizeof(uint32_t) * (shape.parts() + 1));
    }
  }
  ThreadPool::shared().run(static_cast<int>(pages.size()) * parts, [&](int task) {
    const auto page = static_cast<size_t>(task / parts);
    const auto [side, kv_head] = place_of(task % parts);
    const int index = static_cast<int>(side);
    if (!here[index]) return;
    encode_part(pages[page], side, kv_head, heads.head(plan_.attention, task / parts, index, kv_head), tables[index],
                canonical[page].data() + pages[page].view->part_offset(side, kv_head));
  });
  // A side that the device encodes is written after this.
  for (size_t i = 0; i < pages.size(); ++i) {
    const std::vector<uint8_t> bytes = tiered ? arrange_tiers(pages[i], canonical[i]) : std::move(canonical[i]);
    check(cudaMemcpyAsync(pages[i].data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_),
          "uploading pages");
  }
}

std::vector<uint8_t> CudaAppend::arrange_tiers(const NewPage& page, const std::vector<uint8_t>& canonical) const {
  const int heads = plan_.attention.kv_heads;
  std::vector<uint8_t> bytes(static_cast<size_t>(tiered_table_bytes(heads)));
  for (int head = 0; head < heads; ++head) {
    const uint8_t* keys = canonical.data() + page.view->part_offset(Side::kKeys, head);
    const uint8_t* values = canonical.data() + page.view->part_offset(Side::kValues, head);
    const TieredBlock block = layer_.tiered_block(keys);
    const TieredPlace place = {static_cast<uint32_t>(bytes.size()), static_cast<uint16_t>(block.key_chunks),
                               static_cast<uint16_t>(block.n16)};
    std::memcpy(bytes.data() + sizeof place * static_cast<size_t>(head), &place, sizeof place);
    bytes.resize(bytes.size() + static_cast<size_t>(block.bytes()));
    pack_tiered(plan_.attention.formats[0], plan_.attention.formats[1], keys, values, bytes.data() + place.offset);
  }
  return bytes;
}

void CudaAppend::fill(uint8_t* storage) {
  const RowTiles tiles = layer_.tiles(storage);
  const int64_t sinks = new_sinks();
  const int64_t window = layer_.tile_row(plan_.sinks);
  check(append_rows(layer_.row_shape(), input_, 0, sinks, tiles, layer_.tile_row(before_.length), stream_),
        "appending sinks");
  if (pages_ == 0) {
    check(append_rows(layer_.row_shape(), input_, sinks, tokens_ - sinks, tiles, window + before_.window, stream_),
          "appending rows");
    return;
  }
  const int64_t sealed = pages_ * kPageTokens;
  check(fill_rows(layer_.row_shape(), staging_, sealed, staging_.rows - sealed, tiles, window, stream_),
        "filling the window");
}

}  // namespace kvasir::cuda
