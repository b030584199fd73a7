#include "engine/cuda/device_layer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/scratch.h"
#include "codecs/commvq/model.h"
#include "codecs/pattern/format.h"
#include "engine/cuda/status.h"
#include "kernels/cuda/commvq/tables.h"
#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/layout/pack.h"

namespace kvasir::cuda {
namespace {

struct KnownCodec {
  const char* name;
  SideKind kind;
  StoredCodec stored;  // of what its pages hold in codes
};
constexpr KnownCodec kCodecs[] = {
    {"f16", SideKind::kCodes, StoredCodec::kFloat16},
    {"uniform", SideKind::kCodes, StoredCodec::kUniform},
    {"progressive", SideKind::kCodes, StoredCodec::kProgressive},
    {"pattern", SideKind::kPattern, StoredCodec::kUniform},
    {"tiered", SideKind::kTiered, StoredCodec::kNone},
    {"commvq", SideKind::kCommVq, StoredCodec::kNone},
};

const KnownCodec& known(const Codec& codec) {
  for (const KnownCodec& each : kCodecs) {
    if (std::strcmp(each.name, codec.name) == 0) return each;
  }
  throw Error(ErrorCode::kUnavailable, std::string("codec ") + codec.name + " has no kernels for CUDA");
}

DeviceScratch upload(DeviceArena& arena, const void* bytes, size_t count, cudaStream_t stream) {
  DeviceScratch memory(arena, count);
  check(cudaMemcpyAsync(memory.as<void>(), bytes, count, cudaMemcpyHostToDevice, stream), "uploading tables");
  return memory;
}

void download(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "reading a page");
  check(cudaStreamSynchronize(stream), "reading a page");
}

int tiles_of(int rows) { return (rows + kTileSize - 1) / kTileSize; }

}  // namespace

DeviceLayer::DeviceLayer(const LayerPlan& plan, DeviceArena& arena, cudaStream_t stream) : plan_(&plan) {
  sink_tiles_ = tiles_of(plan.sinks);
  window_tiles_ = tiles_of(plan.half_rows() - plan.sinks);
  for (int side = 0; side < 2; ++side) kinds_[side] = known(*plan.codecs[side]).kind;
  choose_family();
  upload_tables(arena, stream);
}

void DeviceLayer::choose_family() {
  const bool both_patterns = kinds_[0] == SideKind::kPattern && kinds_[1] == SideKind::kPattern;
  const bool both_codes = kinds_[0] == SideKind::kCodes && kinds_[1] == SideKind::kCodes;
  bool fragments = (both_codes || both_patterns) && !plan_->turns;
  std::vector<std::array<SideCodec, 2>> codecs;
  for (const PageShape& shape : plan_->shapes) {
    codecs.push_back({SideCodec{known(*plan_->codecs[0]).stored, shape.formats[0]},
                      SideCodec{known(*plan_->codecs[1]).stored, shape.formats[1]}});
    const HeadLayout layout = cuda::head_layout(codecs.back()[0], codecs.back()[1]);
    fragments = fragments && has_fragments(codecs.back()[0]) && has_fragments(codecs.back()[1]) &&
                // Attention reads codes of 16 bits where keys have parameters per token.
                (layout.key_bits != kWideBits || layout.token_keys);
  }
  if (fragments) {
    family_ = PageFamily::kFragments;
  } else if (kinds_[0] == SideKind::kCommVq && kinds_[1] == SideKind::kCommVq) {
    family_ = PageFamily::kCommVq;
  } else if (kinds_[0] == SideKind::kTiered && known(*plan_->codecs[1]).stored == StoredCodec::kUniform &&
             kinds_[1] == SideKind::kCodes &&
             tiered_supported(plan_->attention.formats[0], plan_->attention.formats[1])) {
    family_ = PageFamily::kTiered;
  }
  for (size_t level = 0; level < codecs.size(); ++level) {
    const PageShape& shape = plan_->shapes[level];
    sides_.emplace_back();
    SideFormat* sides = sides_.back().data();
    if (fragments) {
      fragment_sides(codecs[level][0], codecs[level][1], sides);
      for (int side = 0; side < 2; ++side) {
        sides[side].offset += label_bytes();
        sides[side].stride += label_bytes();
      }
      const HeadLayout layout = cuda::head_layout(codecs[level][0], codecs[level][1]);
      page_kinds_.push_back({layout.key_bits, layout.value_bits, layout.token_keys, both_patterns});
      continue;
    }
    // Where parts vary in size, offsets are those of the page at hand.
    for (int side = 0; side < 2; ++side) {
      const SideCodec& codec = codecs[level][side];
      sides[side] = {codec.codec, codec.format, false, 0, static_cast<int64_t>(codec.format.page_bytes)};
      if (!shape.varies()) sides[side].offset = static_cast<int64_t>(shape.part_offset(static_cast<Side>(side), 0));
    }
  }
}

HeadLayout DeviceLayer::head_layout(const PageShape& shape) const {
  const SideFormat* formats = sides(shape);
  return cuda::head_layout({formats[0].codec, formats[0].format}, {formats[1].codec, formats[1].format});
}

int DeviceLayer::label_bytes() const { return labels() ? kBothLabelBytes : 0; }

void DeviceLayer::upload_tables(DeviceArena& arena, cudaStream_t stream) {
  const LayerPlan& plan = *plan_;
  if (!plan.key_scaling.empty()) {
    key_scaling_ = upload(arena, plan.key_scaling.data(), plan.key_scaling.size() * sizeof(float), stream);
  }
  if (!plan.frequencies.empty()) {
    frequencies_ = upload(arena, plan.frequencies.data(), plan.frequencies.size() * sizeof(double), stream);
  }
  if (kinds_[0] == SideKind::kCommVq) {
    const auto& model = static_cast<const commvq::KeyModel&>(*plan.attention.formats[0].model);
    plain_tables_[0] = upload(arena, model.tables, plain_table_bytes(model), stream);
    if (family_ == PageFamily::kCommVq) {
      const KeyPrecision precision = plan.attention.fast ? KeyPrecision::kFast : KeyPrecision::kExact;
      check(plan_key_tables(model, precision, &key_layout_), "planning CommVQ's tables");
      std::vector<uint8_t> bytes(key_layout_.bytes());
      pack_key_tables(model, key_layout_, plan.frequencies.data(), plan.magnitude, bytes.data());
      key_tables_ = upload(arena, bytes.data(), bytes.size(), stream);
    }
  }
  if (kinds_[1] == SideKind::kCommVq) {
    const auto& model = static_cast<const commvq::ValueModel&>(*plan.attention.formats[1].model);
    plain_tables_[1] = upload(arena, model.tables, plain_table_bytes(model), stream);
  }
  const uint16_t* const tables[2] = {plain_tables(Side::kKeys), plain_tables(Side::kValues)};
  if (tables[0] || tables[1]) commvq_sealer_.emplace(plan, tables, arena, stream);
}

AttendShape DeviceLayer::attend_shape(int sequences) const {
  const AttentionLayer& attention = plan_->attention;
  return {attention.head_dim, attention.kv_heads, attention.group(), sequences, labels()};
}

TieredShape DeviceLayer::tiered_shape(int sequences) const {
  const AttentionLayer& attention = plan_->attention;
  const TieredFormat format = tiered_format();
  return {attention.head_dim, attention.kv_heads, attention.group(), format.value_bits,
          sequences,          format.key_group,   format.value_group};
}

const uint8_t* DeviceLayer::part(const PageView& page, Side side, int kv_head, cudaStream_t stream) const {
  if (family_ == PageFamily::kFragments) return fragment_part(page, side, kv_head, stream);
  if (family_ == PageFamily::kTiered) return tiered_part(page, side, kv_head, stream);
  const size_t bytes = page.part_bytes(side, kv_head);
  auto* out = thread_scratch<DeviceLayer, uint8_t>(bytes);
  download(out, page.part(side, kv_head), bytes, stream);
  return out;
}

const uint8_t* DeviceLayer::part_widths(const PageView& page, Side side, int kv_head, cudaStream_t stream) const {
  if (kind(side) != SideKind::kTiered) return part(page, side, kv_head, stream);
  auto* out = thread_scratch<DeviceLayer, uint8_t>(sizeof(TieredPlace));
  if (family_ != PageFamily::kTiered) {
    download(out, page.part(side, kv_head), kWidthBytes, stream);
    return out;
  }
  // A part begins with n16 and n4, and so does a place, behind its offset.
  download(out, page.data + sizeof(TieredPlace) * static_cast<size_t>(kv_head), sizeof(TieredPlace), stream);
  return out + offsetof(TieredPlace, n16);
}

const uint8_t* DeviceLayer::fragment_part(const PageView& page, Side side, int kv_head, cudaStream_t stream) const {
  const HeadLayout layout = head_layout(*page.shape);
  const size_t bytes = page.part_bytes(side, kv_head);
  const size_t block_bytes = static_cast<size_t>(label_bytes()) + layout.bytes();
  auto* out = thread_scratch<DeviceLayer, uint8_t>(bytes + block_bytes);
  uint8_t* block = out + bytes;
  download(block, page.data + static_cast<size_t>(kv_head) * block_bytes, block_bytes, stream);
  std::memset(out, 0, bytes);
  (side == Side::kKeys ? unpack_keys : unpack_values)(layout, block + label_bytes(), out);
  if (labels()) {
    uint8_t* labels = out + pattern::labels_offset(page.format(side));
    for (int t = 0; t < kPageTokens; ++t) {
      labels[t] = block[side == Side::kKeys ? key_label_byte(t) : value_label_byte(t)];
    }
  }
  return out;
}

const uint8_t* DeviceLayer::tiered_part(const PageView& page, Side side, int kv_head, cudaStream_t stream) const {
  TieredPlace place;
  download(&place, page.data + sizeof place * static_cast<size_t>(kv_head), sizeof place, stream);
  const TieredBlock layout = tiered_block(tiered_format(), place);
  const size_t key_bytes = page.part_bytes(Side::kKeys, kv_head), value_bytes = page.part_bytes(Side::kValues, kv_head);
  auto* out = thread_scratch<DeviceLayer, uint8_t>(key_bytes + value_bytes + static_cast<size_t>(layout.bytes()));
  uint8_t* block = out + key_bytes + value_bytes;
  download(block, page.data + place.offset, static_cast<size_t>(layout.bytes()), stream);
  std::memset(out, 0, key_bytes + value_bytes);
  unpack_tiered(page.format(Side::kKeys), page.format(Side::kValues), layout, block, out, out + key_bytes);
  return side == Side::kKeys ? out : out + key_bytes;
}

CommVqShape DeviceLayer::commvq_shape(int sequences, int64_t pages) const {
  const auto& model = static_cast<const commvq::ValueModel&>(*plan_->attention.formats[1].model);
  return {key_layout_, plan_->attention.pairs, plan_->attention.group(), model.page.codes, sequences, pages};
}

}  // namespace kvasir::cuda
