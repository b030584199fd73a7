#include "cache/saving/saving.h"

#include <algorithm>
#include <shared_mutex>
#include <string>
#include <utility>

#include "base/checks.h"
#include "base/crc32c.h"

namespace kvasir {
namespace {

bool is_table(const ImagePart& part) { return part.kind == PartKind::kKeyTable || part.kind == PartKind::kValueTable; }

int64_t chunk_bytes(const LayerPlan& plan, const SideChunk& chunk) {
  return int64_t{plan.attention.kv_heads} * chunk.rows * plan.attention.head_dim *
         static_cast<int64_t>(sizeof(uint16_t));
}

int64_t halves_bytes(const Halves& halves) { return static_cast<int64_t>(halves.bytes()); }

// Of all parts of a layer, at most.
int64_t with_entries(int64_t bytes) { return bytes + 8 * (kImageEntryBytes + kImageAlignment); }

}  // namespace

void SequenceImage::make_rows(const std::vector<LayerPlan>& plans) {
  std::vector<size_t> sizes;
  for (const LayerPlan& plan : plans) {
    const LayerImage& layer = layers[static_cast<size_t>(plan.index)];
    for (const int64_t rows : {layer.sink_rows(plan), layer.window_rows(plan)}) {
      sizes.push_back(static_cast<size_t>(rows * plan.elements_per_token()));
    }
  }
  std::vector<Halves> made = Halves::make(sizes);
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].sinks = std::move(made[2 * i]);
    layers[i].window = std::move(made[2 * i + 1]);
  }
}

Digest tables_after(const Digest& before, const std::vector<ImagePart>& parts) {
  if (std::none_of(parts.begin(), parts.end(), is_table)) return before;
  Sha256 sum;
  sum.add(before.data(), before.size());
  for (const ImagePart& part : parts) {
    if (!is_table(part)) continue;
    sum.add_number(static_cast<uint32_t>(part.kind)).add_number(part.layer).add_number(part.crc).add_number(part.bytes);
  }
  return sum.finish();
}

int64_t most_block_bytes(const std::vector<LayerPlan>& plans) {
  int64_t bytes = kImageHeadBytes;
  for (const LayerPlan& plan : plans) {
    const int64_t row = plan.elements_per_token() * static_cast<int64_t>(sizeof(uint16_t));
    bytes += with_entries(static_cast<int64_t>(plan.shapes[0].bytes()) + plan.most_varying_bytes() +
                          (plan.sinks + kMaxLabels) * row);
  }
  return bytes;
}

int64_t most_state_bytes(const std::vector<LayerPlan>& plans) {
  int64_t bytes = kImageHeadBytes + with_entries(kMostShifts * static_cast<int64_t>(sizeof(PositionShift)));
  for (const LayerPlan& plan : plans) {
    const int64_t row = plan.elements_per_token() * static_cast<int64_t>(sizeof(uint16_t));
    bytes += with_entries((plan.sinks + plan.most_window_rows()) * row + QuerySums::bytes_before_count(plan.attention) +
                          static_cast<int64_t>(sizeof(LayerNumbers)));
  }
  return bytes;
}

const SideChunk* SequenceImage::added(const LayerPlan& plan, int side, int64_t block) const {
  const std::vector<SideChunk>& chunks = layers[static_cast<size_t>(plan.index)].tables[side].chunks;
  if (chunks.empty()) return nullptr;
  if (chunks[0].page == block) return &chunks[0];
  // Those after the first follow each other, one a page.
  const int64_t index = chunks.size() < 2 ? -1 : block - chunks[1].page + 1;
  return index >= 1 && index < static_cast<int64_t>(chunks.size()) ? &chunks[static_cast<size_t>(index)] : nullptr;
}

std::vector<Digest> SequenceImage::tables(const std::vector<LayerPlan>& plans, int64_t blocks) const {
  std::vector<Digest> names = {{}};
  for (int64_t block = 0; block < blocks; ++block) {
    std::vector<ImagePart> parts;
    for (const LayerPlan& plan : plans) {
      for (int side = 0; side < 2; ++side) {
        const SideChunk* chunk = added(plan, side, block);
        if (!chunk) continue;
        const int64_t bytes = chunk_bytes(plan, *chunk);
        parts.push_back({side == 0 ? PartKind::kKeyTable : PartKind::kValueTable, plan.index, 0,
                         crc32c(chunk->vectors.get(), static_cast<size_t>(bytes)), 0, bytes});
      }
    }
    names.push_back(tables_after(names.back(), parts));
  }
  return names;
}

Saving::Impl::Impl(const SavingPlace& where, SequenceImage image) : place(where), image_(std::move(image)) {
  int64_t blocks = 0;
  for (const LayerImage& layer : image_.layers) blocks = std::max(blocks, layer.sealed_pages());
  tables_ = image_.tables(place.plans, blocks);
  digests_.resize(static_cast<size_t>(blocks));
  written_.resize(static_cast<size_t>(blocks));
}

int64_t Saving::Impl::whole_blocks() const {
  int64_t whole = blocks();
  for (const LayerPlan& plan : place.plans) {
    if (plan.owns_rows()) whole = std::min(whole, image_.layers[static_cast<size_t>(plan.index)].sealed_pages());
  }
  return whole;
}

// In the order of docs/format.md: by layer, and of each its tables, its page, its sinks.
int64_t Saving::Impl::write_block(int64_t block, const uint8_t* chain, uint8_t* out, int64_t capacity) {
  if (block < 0 || block >= blocks()) refuse("block " + std::to_string(block) + " of " + std::to_string(blocks()));
  std::vector<std::shared_lock<FairSharedMutex>> locks;  // pages stay as they are
  ImageWriter writer;
  for (const LayerPlan& plan : place.plans) {
    const LayerImage& layer = image_.layers[static_cast<size_t>(plan.index)];
    locks.push_back(place.memory.read(plan.index));
    for (int side = 0; side < 2; ++side) {
      const SideChunk* chunk = image_.added(plan, side, block);
      if (!chunk) continue;
      writer.add(side == 0 ? PartKind::kKeyTable : PartKind::kValueTable, plan.index, 0, chunk_bytes(plan, *chunk));
    }
    if (block >= layer.dropped_pages && block < layer.sealed_pages()) {
      const PageView& view = layer.pages[static_cast<size_t>(block - layer.dropped_pages)]->view();
      writer.add(PartKind::kPage, plan.index, static_cast<int>(view.shape - plan.shapes.data()),
                 static_cast<int64_t>(view.bytes()));
    }
    if (block == 0 && plan.owns_rows() && plan.sinks > 0 && layer.length >= plan.sinks) {
      writer.add(PartKind::kSinks, plan.index, 0, halves_bytes(layer.sinks));
    }
  }
  writer.place();
  if (capacity < writer.bytes()) return writer.bytes();
  require_pointer("out", out);
  const ThreadPool::Use threads(place.threads);
  std::vector<PageOut> pages;
  std::vector<size_t> places;
  for (size_t i = 0; i < writer.parts().size(); ++i) {
    const ImagePart& part = writer.parts()[i];
    if (part.kind != PartKind::kPage) {
      writer.seal(i, fill(part, block, out + part.offset), out);
      continue;
    }
    const auto layer = static_cast<size_t>(part.layer);
    const auto index = static_cast<size_t>(block - image_.layers[layer].dropped_pages);
    pages.push_back({&place.plans[layer], &image_.layers[layer].pages[index]->view(), out + part.offset});
    places.push_back(i);
  }
  const std::vector<uint32_t> sums = place.engine.read_pages(pages);
  for (size_t i = 0; i < places.size(); ++i) writer.seal(places[i], sums[i], out);
  ImageHead head;
  head.number = block;
  head.fingerprint = place.identity.fingerprint;
  if (chain) std::copy_n(chain, head.chain.size(), head.chain.begin());
  const auto number = static_cast<size_t>(block);
  head.tables_before = tables_[number];
  head.tables_after = tables_[number + 1];
  digests_[number] = writer.finish(head, out);
  written_[number] = true;
  return writer.bytes();
}

uint32_t Saving::Impl::fill(const ImagePart& part, int64_t block, uint8_t* out) const {
  const LayerPlan& plan = place.plans[static_cast<size_t>(part.layer)];
  const LayerImage& layer = image_.layers[static_cast<size_t>(part.layer)];
  const auto bytes = static_cast<size_t>(part.bytes);
  switch (part.kind) {
    case PartKind::kKeyTable:
    case PartKind::kValueTable:
      return crc32c_copy(out, image_.added(plan, part.kind == PartKind::kValueTable, block)->vectors.get(), bytes);
    case PartKind::kSinks:
      return crc32c_copy(out, layer.sinks.data(), bytes);
    case PartKind::kWindow:
      return crc32c_copy(out, layer.window.data(), bytes);
    case PartKind::kQueries:
      return crc32c_copy(out, layer.queries.data(), bytes);
    case PartKind::kShifts:
      return crc32c_copy(out, image_.shifts.data(), bytes);
    case PartKind::kLayers:
      break;
    case PartKind::kPage:
      return 0;  // the engine's
  }
  std::vector<LayerNumbers> numbers;
  for (const LayerImage& each : image_.layers) {
    numbers.push_back({each.length, each.dropped_pages, each.sealed_pages(), each.guesses_from, each.query_count, 0});
  }
  return crc32c_copy(out, numbers.data(), bytes);
}

int64_t Saving::Impl::write_state(uint8_t* out, int64_t capacity) {
  const auto missing = std::find(written_.begin(), written_.end(), false);
  ImageWriter writer;
  writer.add(PartKind::kLayers, 0, 0, static_cast<int64_t>(image_.layers.size() * sizeof(LayerNumbers)));
  if (!image_.shifts.empty()) {
    writer.add(PartKind::kShifts, 0, 0, static_cast<int64_t>(image_.shifts.size() * sizeof(PositionShift)));
  }
  for (const LayerPlan& plan : place.plans) {
    const LayerImage& layer = image_.layers[static_cast<size_t>(plan.index)];
    if (!layer.sinks.empty()) writer.add(PartKind::kSinks, plan.index, 0, halves_bytes(layer.sinks));
    if (!layer.window.empty()) writer.add(PartKind::kWindow, plan.index, 0, halves_bytes(layer.window));
    if (!layer.queries.empty()) {
      writer.add(PartKind::kQueries, plan.index, 0, static_cast<int64_t>(layer.queries.size()));
    }
  }
  writer.place();
  if (capacity < writer.bytes()) return writer.bytes();
  require_pointer("out", out);
  if (missing != written_.end()) {
    refuse("block " + std::to_string(missing - written_.begin()) + " was not written yet: the state comes last");
  }
  const ThreadPool::Use threads(place.threads);
  ThreadPool::current().run(static_cast<int>(writer.parts().size()), [&](int i) {
    const auto part = static_cast<size_t>(i);
    writer.seal(part, fill(writer.parts()[part], 0, out + writer.parts()[part].offset), out);
  });
  ImageHead head;
  head.type = ImageType::kState;
  head.number = blocks();
  head.fingerprint = place.identity.fingerprint;
  Sha256 all;
  for (const Digest& digest : digests_) all.add(digest.data(), digest.size());
  head.chain = all.finish();
  head.tables_before = head.tables_after = tables_.back();
  writer.finish(head, out);
  return writer.bytes();
}

void Saving::destroy(Saving* saving) { delete saving; }
Saving::Saving(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Saving::~Saving() = default;
int64_t Saving::blocks() const { return impl_->blocks(); }
int64_t Saving::whole_blocks() const { return impl_->whole_blocks(); }
int64_t Saving::sinks() const { return impl_->place.plans[0].sinks; }
int64_t Saving::write_block(int64_t block, const uint8_t* chain, uint8_t* out, int64_t capacity) {
  return impl_->write_block(block, chain, out, capacity);
}
int64_t Saving::write_state(uint8_t* out, int64_t capacity) { return impl_->write_state(out, capacity); }

}  // namespace kvasir
