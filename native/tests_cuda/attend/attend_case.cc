#include "attend/attend_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference/attention.h"
#include "reference/f16_page.h"
#include "reference/progressive_page.h"
#include "reference/uniform_page.h"

namespace attend_case {
namespace {

using namespace kvasir::cuda;

float rounded(double x) { return static_cast<float>(reference::half_value(reference::half_nearest(x))); }

uint16_t bfloat_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float bfloat_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

// One head's rows out of [tokens][heads][d], and back.
std::vector<float> head_rows(const std::vector<float>& rows, int heads, int d, int head) {
  std::vector<float> out;
  for (size_t t = 0; t < rows.size() / heads / d; ++t) {
    const float* row = rows.data() + (t * heads + head) * d;
    out.insert(out.end(), row, row + d);
  }
  return out;
}

void set_head_rows(std::vector<float>& rows, int heads, int d, int head, const std::vector<float>& from) {
  for (size_t t = 0; t < from.size() / d; ++t) {
    std::copy_n(from.data() + t * d, d, rows.data() + (t * heads + head) * d);
  }
}

// The canonical bytes of one side, and what they decode to.
struct Encoded {
  std::vector<uint8_t> bytes;
  std::vector<float> rows;
};

// Keys per token and codes of 16 bits are the codec progressive's.
bool is_narrowed(const PageKind& kind, reference::Side side) {
  const bool keys = side == reference::Side::kKeys;
  return (keys && kind.token_keys) || (keys ? kind.key_bits : kind.value_bits) == kWideBits;
}

Encoded encode(const PageKind& kind, reference::Side side, int d, const std::vector<float>& rows) {
  const reference::PageShape shape = kind.shape(side, d);
  if (is_narrowed(kind, side)) {
    Encoded encoded{reference::progressive::encode(shape, rows.data()), {}};
    encoded.rows = reference::uniform::decode(shape, encoded.bytes.data()).rows;
    return encoded;
  }
  if (shape.bits == kFloat16Bits) {
    const reference::ReferenceCodec codec = reference::f16_reference();
    Encoded encoded{codec.encode(shape, rows.data()), {}};
    encoded.rows = codec.decode(shape, encoded.bytes.data()).rows;
    return encoded;
  }
  Encoded encoded{reference::uniform::encode(shape, rows.data()), {}};
  encoded.rows = reference::uniform::decode(shape, encoded.bytes.data()).rows;
  return encoded;
}

}  // namespace

reference::PageShape PageKind::shape(reference::Side side, int head_dim) const {
  const bool keys = side == reference::Side::kKeys;
  const int bits = keys ? key_bits : value_bits;
  if (!is_narrowed(*this, side)) {
    if (bits == kFloat16Bits) return reference::f16_reference().shape(side, bits, head_dim, {});
    return reference::uniform::shape(side, bits, head_dim, options());
  }
  reference::Options with_axis = options();
  with_axis["axis"] = keys && !token_keys ? 0.0 : 1.0;
  return reference::progressive::shape(side, bits == kWideBits ? 16 : bits, head_dim, with_axis);
}

HeadLayout PageKind::layout(int head_dim) const {
  HeadLayout layout = {head_dim, key_bits, value_bits, token_keys, labels};
  layout.key_cells = shape(reference::Side::kKeys, head_dim).cells;
  layout.value_cells = shape(reference::Side::kValues, head_dim).cells;
  return layout;
}

Batch::Batch(const Setting& setting) : setting_(setting), random_(setting.seed) {
  for (const PageKind& kind : setting.formats) layouts_.push_back(kind.layout(setting.shape.head_dim));
  CUDA(plan_attend(setting_.shape, &plan_));
  if (setting_.blocks > 0) plan_.blocks = setting_.blocks;
  for (const Length& length : setting_.lengths) sequences_.push_back(build(length));
  for (const Sequence& sequence : sequences_) {  // each in memory of its own
    addresses_.push_back(static_cast<DeviceSequence*>(upload(&sequence.device, sizeof(DeviceSequence))));
  }
  device_addresses_ = static_cast<const DeviceSequence**>(upload(addresses_.data(), 8 * addresses_.size()));

  const size_t numbers = sequences_.size() * setting_.shape.kv_heads * setting_.shape.group * setting_.shape.head_dim;
  std::normal_distribution<float> normal;
  std::vector<uint16_t> narrow;
  for (size_t i = 0; i < numbers; ++i) {
    const float x = normal(random_) * (setting_.data == Data::kPeaked ? 100.0f : 1.0f);
    if (setting_.type == kvasir::ElementType::kFloat32) {
      queries_.push_back(x);
    } else if (setting_.type == kvasir::ElementType::kFloat16) {
      narrow.push_back(reference::half_nearest(x));
      queries_.push_back(static_cast<float>(reference::half_value(narrow.back())));
    } else {
      narrow.push_back(bfloat_bits(x));
      queries_.push_back(bfloat_value(narrow.back()));
    }
  }
  device_queries_ = narrow.empty() ? upload(queries_.data(), 4 * numbers) : upload(narrow.data(), 2 * numbers);
  CUDA(cudaMalloc(&device_outputs_, 4 * numbers + 4));
  CUDA(cudaMalloc(&workspace_, plan_.workspace_bytes));
  CUDA(cudaMemset(workspace_, 0xff, plan_.workspace_bytes));
  CUDA(clear_workspace(plan_, workspace_, nullptr));
  const size_t room = vector_room_bytes(plan_, setting_.patterns.room);
  CUDA(cudaMalloc(&pattern_room_, room + 256));
  CUDA(cudaMemset(pattern_room_, 0xff, room + 256));
}

Batch::~Batch() {
  for (void* memory : memory_) cudaFree(memory);
  cudaFree(device_outputs_);
  cudaFree(workspace_);
  cudaFree(pattern_room_);
}

void* Batch::upload(const void* bytes, size_t count) {
  void* memory = nullptr;
  CUDA(cudaMalloc(&memory, std::max<size_t>(count, 16)));
  CUDA(cudaMemcpy(memory, bytes, count, cudaMemcpyHostToDevice));
  memory_.push_back(memory);
  return memory;
}

void Batch::make_rows(std::vector<float>& keys, std::vector<float>& values, int tokens) {
  const int heads = setting_.shape.kv_heads, d = setting_.shape.head_dim;
  std::normal_distribution<double> normal;
  const bool outliers = setting_.data == Data::kOutliers, constant = setting_.data == Data::kConstant;
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      const double token_scale = outliers ? std::pow(10.0, -(t * 7 % 5)) : 1.0;
      const double token_value = normal(random_);
      for (int c = 0; c < d; ++c) {
        const double channel_scale = outliers && c % 37 == 5 ? 20.0 : 1.0;
        const double offset = outliers ? 3.0 * std::sin(c * 1.7 + h) : 0.0;
        keys.push_back(rounded(constant ? std::sin(c * 0.9 + h) : (normal(random_) + offset) * channel_scale));
        values.push_back(rounded(constant ? token_value : (normal(random_) + 0.5) * token_scale));
      }
    }
  }
}

const Batch::Page& Batch::page(int format, int index) {
  const auto place = std::make_pair(format, index % kDistinctPages);
  const auto found = pages_.find(place);
  if (found != pages_.end()) return found->second;
  const int heads = setting_.shape.kv_heads, d = setting_.shape.head_dim;
  const PageKind& kind = setting_.formats[format];
  const HeadLayout layout = {d, kind.key_bits, kind.value_bits, kind.token_keys};  // labels are added below
  Page made;
  make_rows(made.keys, made.values, kvasir::kPageTokens);
  std::vector<uint8_t> bytes(static_cast<size_t>(layout.bytes()) * heads);
  for (int h = 0; h < heads; ++h) {
    const std::vector<float> keys = head_rows(made.keys, heads, d, h), values = head_rows(made.values, heads, d, h);
    const Encoded k = encode(kind, reference::Side::kKeys, d, keys);
    const Encoded v = encode(kind, reference::Side::kValues, d, values);
    uint8_t* block = bytes.data() + static_cast<size_t>(h) * layout.bytes();
    pack_keys(layout, k.bytes.data(), block);
    pack_values(layout, v.bytes.data(), block);
    set_head_rows(made.keys, heads, d, h, k.rows);
    set_head_rows(made.values, heads, d, h, v.rows);
  }
  made.reference = kind.labels ? 0 : page_reference(upload(bytes.data(), bytes.size()), format);
  made.bytes = std::move(bytes);
  return pages_.emplace(place, std::move(made)).first->second;
}

Batch::Table Batch::make_table(bool keys, int pages) {
  const Patterns& patterns = setting_.patterns;
  const int heads = setting_.shape.kv_heads, d = setting_.shape.head_dim;
  Table table;
  if (!(keys ? patterns.keys : patterns.values)) return table;
  const int added = std::max(0, pages - patterns.first_page);
  table.count = patterns.fixed + added;
  std::normal_distribution<double> normal;
  for (int i = 0; i < heads * table.count * d; ++i) table.vectors.push_back(rounded(normal(random_)));
  const VectorTableLayout layout = {d};
  const int64_t stride = layout.bytes(table.count + 20);
  std::vector<uint8_t> bytes(static_cast<size_t>(stride * heads), 0);
  for (int h = 0; h < heads; ++h) {
    for (int v = 0; v < table.count; ++v) {
      for (int c = 0; c < d; ++c) {
        const size_t i = (static_cast<size_t>(h) * table.count + v) * d + c;
        const uint16_t half = reference::half_nearest(table.vectors[i]);
        std::memcpy(bytes.data() + h * stride + (keys ? layout.key_byte(v, c) : layout.value_byte(v, c)), &half, 2);
      }
    }
  }
  table.device = {static_cast<const uint8_t*>(upload(bytes.data(), bytes.size())),
                  stride,
                  patterns.fixed,
                  added,
                  patterns.first_page,
                  0};
  return table;
}

Batch::Page Batch::labelled_page(int format, int index, const Table& keys, const Table& values) {
  const int heads = setting_.shape.kv_heads, d = setting_.shape.head_dim;
  Page made = page(format, index);
  const size_t head_bytes = made.bytes.size() / heads;
  std::vector<uint8_t> bytes;
  for (int h = 0; h < heads; ++h) {
    uint8_t labels[kBothLabelBytes] = {};
    for (const bool side : {true, false}) {
      const Table& table = side ? keys : values;
      if (table.count == 0) continue;
      // docs/format.md, "Side table".
      const int newer =
          std::min(std::max(index - setting_.patterns.first_page + 1, 0), table.count - table.device.fixed);
      const int room = 255 - table.device.fixed;
      const int visible = table.device.fixed + std::min(newer, room);
      std::vector<float>& rows = side ? made.keys : made.values;
      for (int t = 0; t < kvasir::kPageTokens; ++t) {
        const int label = static_cast<int>(random_() % (visible + 1));
        labels[side ? key_label_byte(t) : value_label_byte(t)] = static_cast<uint8_t>(label);
        if (label == 0) continue;
        const int vector = label <= table.device.fixed
                               ? label - 1
                               : table.device.fixed + std::max(0, newer - room) + label - table.device.fixed - 1;
        for (int c = 0; c < d; ++c) {
          rows[(static_cast<size_t>(t) * heads + h) * d + c] +=
              table.vectors[(static_cast<size_t>(h) * table.count + vector) * d + c];
        }
      }
    }
    bytes.insert(bytes.end(), labels, labels + kBothLabelBytes);
    bytes.insert(bytes.end(), made.bytes.begin() + h * head_bytes, made.bytes.begin() + (h + 1) * head_bytes);
  }
  made.reference = page_reference(upload(bytes.data(), bytes.size()), format);
  return made;
}

// Blocks with rows 0 .. end - 1 written, of which `begin` and later are visible. They lie in memory in the opposite
// order, so that nothing but the list finds them.
RowSpan Batch::upload_rows(const std::vector<float>& keys, const std::vector<float>& values, int begin, int end) {
  const int heads = setting_.shape.kv_heads, d = setting_.shape.head_dim;
  const RowTileLayout layout = {d};
  const int tiles = (end + kTileSize - 1) / kTileSize + 1;
  const size_t block_bytes = static_cast<size_t>(heads) * layout.bytes();
  std::vector<uint8_t> bytes(block_bytes * tiles, 0);
  const auto offset = [&](int tile) { return static_cast<size_t>(tiles - 1 - tile) * block_bytes; };
  for (int t = 0; t < end; ++t) {
    for (int h = 0; h < heads; ++h) {
      uint8_t* tile = bytes.data() + offset(t / kTileSize) + static_cast<size_t>(h) * layout.bytes();
      for (int c = 0; c < d; ++c) {
        const size_t i = (static_cast<size_t>(t) * heads + h) * d + c;
        const uint16_t k = reference::half_nearest(keys[i]), v = reference::half_nearest(values[i]);
        std::memcpy(tile + layout.key_byte(t % kTileSize, c), &k, 2);
        std::memcpy(tile + layout.value_byte(t % kTileSize, c), &v, 2);
      }
    }
  }
  const auto memory = reinterpret_cast<uint64_t>(upload(bytes.data(), bytes.size()));
  std::vector<uint64_t> blocks;
  for (int tile = 0; tile < tiles; ++tile) blocks.push_back(memory + offset(tile));
  return {static_cast<const uint64_t*>(upload(blocks.data(), 8 * blocks.size())), begin, end};
}

Batch::Sequence Batch::build(const Length& length) {
  const size_t row = static_cast<size_t>(setting_.shape.kv_heads) * setting_.shape.head_dim;
  Sequence sequence;
  auto see = [&](const std::vector<float>& keys, const std::vector<float>& values, int first) {
    sequence.keys.insert(sequence.keys.end(), keys.begin() + first * row, keys.end());
    sequence.values.insert(sequence.values.end(), values.begin() + first * row, values.end());
  };
  if (length.sinks > 0) {
    std::vector<float> keys, values;
    make_rows(keys, values, length.sinks);
    sequence.device.sinks = upload_rows(keys, values, 0, length.sinks);
    see(keys, values, 0);
  }
  std::vector<uint64_t> table;
  Table key_table, value_table;
  if (setting_.shape.labels) {
    key_table = make_table(true, length.pages);
    value_table = make_table(false, length.pages);
    sequence.device.key_vectors = key_table.device;
    sequence.device.value_vectors = value_table.device;
  }
  for (int p = 0; p < length.pages; ++p) {
    const int format = p % static_cast<int>(setting_.formats.size());
    const bool labels = setting_.formats[format].labels;
    const Page content = labels ? labelled_page(format, p, key_table, value_table) : page(format, p);
    table.push_back(content.reference);
    see(content.keys, content.values, p == 0 ? length.hidden : 0);
  }
  sequence.device.pages = static_cast<const uint64_t*>(upload(table.data(), 8 * table.size()));
  sequence.device.page_count = length.pages;
  sequence.device.hidden_tokens = length.hidden;
  if (length.window > 0) {
    std::vector<float> keys, values;
    make_rows(keys, values, length.window_begin + length.window);
    sequence.device.window = upload_rows(keys, values, length.window_begin, length.window_begin + length.window);
    see(keys, values, length.window_begin);
  }
  return sequence;
}

AttendRequest Batch::request() const {
  const bool listed = setting_.listed || addresses_.size() > kInlineSequences;
  return {listed ? device_addresses_ : addresses_.data(),
          listed,
          static_cast<int>(sequences_.size()),
          device_queries_,
          device_outputs_,
          setting_.type,
          1.0f / std::sqrt(static_cast<float>(setting_.shape.head_dim)),
          layouts_.data(),
          static_cast<int>(layouts_.size()),
          workspace_,
          pattern_room_,
          setting_.patterns.room};
}

std::vector<float> Batch::attend() {
  const size_t numbers = queries_.size();
  const size_t width = setting_.type == kvasir::ElementType::kFloat32 ? 4 : 2;
  CUDA(cudaMemset(device_outputs_, 0xff, width * numbers));  // NaN in every type
  CUDA(launch_attend(plan_, request(), nullptr));
  CUDA(cudaDeviceSynchronize());
  std::vector<uint8_t> bytes(width * numbers);
  CUDA(cudaMemcpy(bytes.data(), device_outputs_, bytes.size(), cudaMemcpyDeviceToHost));
  std::vector<float> out(numbers);
  for (size_t i = 0; i < numbers; ++i) {
    uint16_t half = 0;
    std::memcpy(setting_.type == kvasir::ElementType::kFloat32 ? static_cast<void*>(&out[i]) : &half,
                bytes.data() + width * i, width);
    if (setting_.type == kvasir::ElementType::kFloat16) out[i] = static_cast<float>(reference::half_value(half));
    if (setting_.type == kvasir::ElementType::kBFloat16) out[i] = bfloat_value(half);
  }
  return out;
}

std::vector<double> Batch::expected() const {
  const AttendShape& s = setting_.shape;
  const int query_heads = s.kv_heads * s.group;
  std::vector<double> out;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& sequence = sequences_[i];
    const size_t row = static_cast<size_t>(query_heads) * s.head_dim;
    const int64_t tokens = static_cast<int64_t>(sequence.keys.size()) / s.kv_heads / s.head_dim;
    std::vector<double> one(row, 0.0);
    if (tokens > 0) {
      one = reference::attention({query_heads, s.kv_heads, s.head_dim}, sequence.keys.data(), sequence.values.data(), 0,
                                 tokens, queries_.data() + i * row, 1);
    }
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

bool Batch::workspace_is_clear() const {
  std::vector<uint8_t> bytes(plan_.partials_offset);
  CUDA(cudaMemcpy(bytes.data(), workspace_, bytes.size(), cudaMemcpyDeviceToHost));
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

double nmse(const std::vector<float>& got, const std::vector<double>& expected) {
  return reference::nmse(got.data(), expected);
}

}  // namespace attend_case
