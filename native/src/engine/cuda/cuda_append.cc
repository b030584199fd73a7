#include "engine/cuda/cuda_append.h"

#include <algorithm>
#include <cstring>

#include "base/kmeans.h"
#include "base/thread_pool.h"
#include "codecs/pattern/format.h"
#include "codecs/tiered/format.h"
#include "engine/cuda/status.h"
#include "engine/query_sums.h"
#include "kernels/cuda/encode.h"
#include "kernels/cuda/kmeans.h"
#include "kernels/cuda/query_sums.h"
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

TieredSealRequest CudaAppend::tiered_request() const {
  TieredSealRequest request = {};
  request.shape = layer_.row_shape();
  request.keys = plan_.attention.formats[0];
  request.values = plan_.attention.formats[1];
  request.staging = staging_;
  request.page_count = pages_;
  return request;
}

TierChoices CudaAppend::choices() const { return tier_choices(layer_.row_shape(), pages_, choices_.as<void>()); }

bool CudaAppend::lay_out(const SeenQueries& queries, PartHeads& heads) {
  if (layer_.kind(Side::kKeys) != SideKind::kTiered) return false;
  const RowShape shape = layer_.row_shape();
  const size_t parts = static_cast<size_t>(pages_) * shape.kv_heads;
  choices_ = DeviceScratch(arena_, tier_choice_bytes(shape, pages_));
  const DeviceScratch importance(arena_, static_cast<size_t>(shape.kv_heads) * shape.head_dim * sizeof(float));
  TieredSealRequest request = tiered_request();
  request.importance = importance.as<float>();
  const QuerySums seen = queries.sums ? QuerySums::at(plan_.attention, queries.sums) : QuerySums{nullptr, nullptr};
  check(launch_read_query_means(layer_.query_shape(), seen.sums, seen.known, queries.count, layer_.key_scaling(),
                                importance.as<float>(), stream_),
        "reading query sums");
  check(choose_tiers(request, choices(), stream_), "choosing tiers");
  std::vector<TierCounts> counts(parts);
  check(cudaMemcpyAsync(counts.data(), choices().counts, parts * sizeof(TierCounts), cudaMemcpyDeviceToHost, stream_),
        "reading tiers");
  check(cudaStreamSynchronize(stream_), "reading tiers");
  const PageShape& stored = plan_.shapes[0];
  const bool arranged = layer_.family() == PageFamily::kTiered;  // as tiered_layout.h has them
  for (int64_t page = 0; page < pages_; ++page) {
    int64_t varying = arranged ? tiered_table_bytes(shape.kv_heads) - static_cast<int64_t>(stored.bytes()) : 0;
    for (int head = 0; head < shape.kv_heads; ++head) {
      const TierCounts tiers = counts[static_cast<size_t>(page) * shape.kv_heads + head];
      const size_t bytes = tiered::layout_of(request.keys, tiers.n16, tiers.n4).bytes;
      heads.sizes[static_cast<size_t>(page * stored.parts() + head)] = static_cast<uint32_t>(bytes);
      varying +=
          arranged ? tiered_block(layer_.tiered_format(), tiers.n16, tiers.n4).bytes() : static_cast<int64_t>(bytes);
    }
    heads.varying[static_cast<size_t>(page)] = varying;
  }
  return true;
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
  if (layer_.family() == PageFamily::kTiered) return encode_tiers(pages);
  if (layer_.labels()) return encode_patterns(pages, tables, static_cast<const CudaLayerState&>(*state));
  const bool keys = layer_.kind(Side::kKeys) == SideKind::kCodes;
  const bool values = layer_.kind(Side::kValues) == SideKind::kCodes;
  if (sealed_here(Side::kKeys) || sealed_here(Side::kValues)) encode_here(pages, heads, tables);
  if (layer_.kind(Side::kKeys) == SideKind::kTiered) encode_tiered_parts(pages);
  if (keys || values) encode_on_device(pages, keys, values);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (layer_.kind(side) == SideKind::kCommVq) encode_commvq(side, pages);
  }
}

void CudaAppend::encode_commvq(Side side, const std::vector<NewPage>& pages) {
  std::vector<uint8_t*> parts;
  for (const NewPage& page : pages) parts.push_back(page.data + page.view->part_offset(side, 0));
  layer_.commvq_sealer().seal(side, staging_, parts, arena_, stream_);
}

void CudaAppend::encode_tiers(const std::vector<NewPage>& pages) {
  std::vector<uint8_t*> addresses;
  for (const NewPage& page : pages) addresses.push_back(page.data);
  check(seal_tiered_pages(tiered_request(), choices(), addresses.data(), stream_), "sealing pages");
}

void CudaAppend::encode_tiered_parts(const std::vector<NewPage>& pages) {
  const PageShape& shape = plan_.shapes[0];
  std::vector<uint8_t*> addresses;
  std::vector<uint32_t> offsets;
  for (const NewPage& page : pages) {
    addresses.push_back(page.data);
    offsets.insert(offsets.end(), page.view->offsets, page.view->offsets + shape.parts() + 1);
  }
  const DeviceScratch there(arena_, offsets.size() * sizeof(uint32_t));
  check(cudaMemcpyAsync(there.as<void>(), offsets.data(), there.bytes(), cudaMemcpyHostToDevice, stream_),
        "uploading offsets");
  const PageTable table = {there.as<uint32_t>(), shape.parts(), static_cast<int>(shape.table_bytes())};
  check(seal_tiered_parts(tiered_request(), choices(), table, addresses.data(), stream_), "sealing pages");
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
    if (!sealed_here(side)) return;
    encode_part(pages[page], side, kv_head, heads.head(plan_.attention, task / parts, index, kv_head), tables[index],
                canonical[page].data() + pages[page].view->part_offset(side, kv_head));
  });
  // A side that the device encodes is written after this.
  for (size_t i = 0; i < pages.size(); ++i) {
    check(cudaMemcpyAsync(pages[i].data, canonical[i].data(), canonical[i].size(), cudaMemcpyHostToDevice, stream_),
          "uploading pages");
  }
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
