#include "cache/stats.h"

#include "kvasir/error.h"

namespace kvasir {
namespace {

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

int side_index(Side side) {
  if (side != Side::kKeys && side != Side::kValues) {
    throw Error(ErrorCode::kInvalidArgument, "side " + std::to_string(static_cast<int>(side)));
  }
  return static_cast<int>(side);
}

}  // namespace

void LayerStats::add(const LayerStats& other) {
  pages += other.pages;
  page_bytes += other.page_bytes;
  window_bytes += other.window_bytes;
  table_bytes += other.table_bytes;
  page_elements += other.page_elements;
  elements += other.elements;
  codebooks.insert(other.codebooks.begin(), other.codebooks.end());
  for (int side = 0; side < 2; ++side) {
    parts[side] += other.parts[side];
    part_bytes[side] += other.part_bytes[side];
    for (int bits = 0; bits <= 16; ++bits) channels[side][bits] += other.channels[side][bits];
    parts_without_table[side] += other.parts_without_table[side];
    labelled_tokens[side] += other.labelled_tokens[side];
  }
  shrinks.count += other.shrinks.count;
  shrinks.freed_bytes += other.shrinks.freed_bytes;
  shrinks.nanoseconds += other.shrinks.nanoseconds;
}

int64_t LayerStats::codebook_bytes() const {
  int64_t bytes = 0;
  for (const auto& codebook : codebooks) bytes += codebook.second;
  return bytes;
}

LayerStats CacheStats::Impl::at(int layer) const {
  if (layer == kAllLayers) {
    LayerStats total;
    for (const LayerStats& each : layers) total.add(each);
    return total;
  }
  if (layer < 0 || layer >= static_cast<int>(layers.size())) {
    throw Error(ErrorCode::kInvalidArgument, "layer " + std::to_string(layer) + " of " + std::to_string(layers.size()));
  }
  return layers[layer];
}

CacheStats::CacheStats(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CacheStats::~CacheStats() = default;
void CacheStats::destroy(CacheStats* stats) { delete stats; }

int64_t CacheStats::sequences() const { return impl_->sequences; }
int64_t CacheStats::budget() const { return impl_->budget; }
int64_t CacheStats::bytes() const { return impl_->bytes; }
int64_t CacheStats::peak_bytes() const { return impl_->peak_bytes; }
int64_t CacheStats::layer_bytes(int layer) const { return impl_->at(layer).bytes(); }
int64_t CacheStats::pages(int layer) const { return impl_->at(layer).pages; }
int64_t CacheStats::page_bytes(int layer) const { return impl_->at(layer).page_bytes; }
int64_t CacheStats::window_bytes(int layer) const { return impl_->at(layer).window_bytes; }
int64_t CacheStats::table_bytes(int layer) const { return impl_->at(layer).table_bytes; }

double CacheStats::page_bits_per_element(int layer) const {
  const LayerStats stats = impl_->at(layer);
  return 8 * share(stats.page_bytes, stats.page_elements);
}

double CacheStats::bits_per_element(int layer) const {
  const LayerStats stats = impl_->at(layer);
  return 8 * share(stats.bytes(), stats.elements);
}

int64_t CacheStats::codebook_bytes(int layer) const { return impl_->at(layer).codebook_bytes(); }

double CacheStats::bits_per_element_with_codebooks(int layer) const {
  const LayerStats stats = impl_->at(layer);
  return 8 * share(stats.bytes() + stats.codebook_bytes(), stats.elements);
}

double CacheStats::code_bits(int layer, Side side) const {
  const LayerStats stats = impl_->at(layer);
  const int index = side_index(side);
  int64_t channels = 0, bits = 0;
  for (int width = 0; width <= 16; ++width) {
    channels += stats.channels[index][width];
    bits += width * stats.channels[index][width];
  }
  return share(bits, channels);
}

double CacheStats::side_bits_per_element(int layer, Side side) const {
  const LayerStats stats = impl_->at(layer);
  const int index = side_index(side);
  int64_t channels = 0;
  for (const int64_t each : stats.channels[index]) channels += each;
  return 8 * share(stats.part_bytes[index], channels * kPageTokens);
}

int64_t CacheStats::channels(int layer, Side side, int bits) const {
  if (bits < 0 || bits > 16) {
    throw Error(ErrorCode::kInvalidArgument, "a width of 0..16 bits, not " + std::to_string(bits));
  }
  return impl_->at(layer).channels[side_index(side)][bits];
}

int64_t CacheStats::shrinks(int layer) const { return impl_->at(layer).shrinks.count; }
int64_t CacheStats::shrunk_bytes(int layer) const { return impl_->at(layer).shrinks.freed_bytes; }
int64_t CacheStats::shrink_nanoseconds(int layer) const { return impl_->at(layer).shrinks.nanoseconds; }

namespace {

Memory::Step step_at(const LayerStats& layer, int step) {
  if (step < 0 || step >= static_cast<int>(layer.steps.size())) {
    throw Error(ErrorCode::kInvalidArgument,
                "step " + std::to_string(step) + " of " + std::to_string(layer.steps.size()));
  }
  return layer.steps[step];
}

}  // namespace

int CacheStats::steps(int layer) const { return static_cast<int>(impl_->at(layer).steps.size()); }
int CacheStats::step_bits(int layer, int step) const { return step_at(impl_->at(layer), step).bits; }
int64_t CacheStats::step_pages(int layer, int step) const { return step_at(impl_->at(layer), step).pages; }

double CacheStats::table_use(int layer, Side side) const {
  const LayerStats stats = impl_->at(layer);
  const int index = side_index(side);
  return share(stats.labelled_tokens[index], stats.parts[index] * kPageTokens);
}

double CacheStats::parts_without_table(int layer, Side side) const {
  const LayerStats stats = impl_->at(layer);
  const int index = side_index(side);
  return share(stats.parts_without_table[index], stats.parts[index]);
}

const char* CacheStats::backend() const { return impl_->backend.c_str(); }
int64_t CacheStats::tiles() const { return impl_->tiles; }
int64_t CacheStats::fallback_tiles() const { return impl_->fallback_tiles; }

}  // namespace kvasir
