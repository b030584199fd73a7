// Tiered keys with uniform values on the device: the layout, and attention against the definition in double.
#include "kernels/cuda/tiered/attend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "check.h"
#include "codecs/tiered/format.h"
#include "codecs/uniform/format.h"
#include "reference/attention.h"
#include "reference/tiered_page.h"

namespace {

using namespace kvasir::cuda;

struct Length {
  int sinks = 0, pages = 0, window = 0, hidden = 0, window_begin = 0;
};

struct Setting {
  TieredShape shape;
  reference::Options options = {{"mode", 2.0}, {"key_bits", 2.7}};
  int value_group = 32;
  std::vector<Length> lengths = {};
  kvasir::ElementType type = kvasir::ElementType::kFloat32;
  bool value_cells = shape.value_bits == 2;
  bool even = false;  // values of all tokens are of like size

  std::string describe() const {
    std::ostringstream text;
    text << "d=" << shape.head_dim << " kv=" << shape.kv_heads << " group=" << shape.group
         << " values=" << shape.value_bits << "/" << value_group << " type=" << static_cast<int>(type);
    for (const auto& option : options) text << " " << option.first << "=" << option.second;
    return text.str();
  }
  reference::PageShape keys() const {
    return reference::tiered::shape(reference::Side::kKeys, 2, shape.head_dim, options);
  }
  reference::PageShape values() const {
    return {reference::Side::kValues, shape.head_dim, shape.value_bits, 1, value_group, value_cells};
  }
  kvasir::PageFormat key_format() const {
    kvasir::PageFormat format;
    format.head_dim = shape.head_dim;
    format.group = keys().group;
    format.grid = keys().cells ? kvasir::Grid::kCells : kvasir::Grid::kEnds;
    return format;
  }
  kvasir::PageFormat value_format() const {
    kvasir::PageFormat format;
    format.side = kvasir::Side::kValues;
    format.head_dim = shape.head_dim;
    format.bits = shape.value_bits;
    format.axis = kvasir::Axis::kToken;
    format.group = value_group;
    format.grid = value_cells ? kvasir::Grid::kCells : kvasir::Grid::kEnds;
    format.page_bytes = kvasir::uniform::layout_of(format).bytes;
    return format;
  }
};

float rounded(double x) { return static_cast<float>(reference::half_value(reference::half_nearest(x))); }

// Channels of very different ranges, so that all tiers are used; tokens of very different sizes, or not.
void make_rows(std::mt19937& random, int d, int tokens, bool even, std::vector<float>& keys,
               std::vector<float>& values) {
  std::normal_distribution<double> normal;
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < d; ++c) {
      const double size = c % 29 == 3 ? 9.0 : c % 7 == 1 ? 2.0 : 0.5;
      keys.push_back(rounded(size * normal(random) + std::sin(c * 1.3)));
      values.push_back(rounded((normal(random) + 0.3) * (even ? 1.0 : std::pow(10.0, t % 3 - 1))));
    }
  }
}

struct Parts {
  std::vector<uint8_t> keys, values;
  std::vector<float> key_rows, value_rows;  // decoded
};

Parts make_parts(const Setting& s, std::mt19937& random) {
  std::vector<float> keys, values;
  make_rows(random, s.shape.head_dim, 128, s.even, keys, values);
  Parts parts;
  parts.keys = reference::tiered::encode(s.keys(), keys.data());
  parts.values = reference::uniform::encode(s.values(), values.data());
  parts.key_rows = reference::tiered::decode(s.keys(), parts.keys.data()).rows;
  parts.value_rows = reference::uniform::decode(s.values(), parts.values.data()).rows;
  return parts;
}

// Tiers of 4 bits that end in all places of a band. With the fewest bits channels of the greatest ranges have
// codes too.
std::vector<reference::Options> policies() {
  std::vector<reference::Options> all = reference::tiered::half_variants();
  for (const double bits : {2.3, 2.5, 2.7, 2.9, 3.1, 3.3, 3.5, 3.8, 4.0}) {
    all.push_back({{"mode", 2.0}, {"key_bits", bits}, {"group", bits > 3.0 ? 128.0 : 64.0}});
  }
  return all;
}

HOST_CASE("tiered pages: there and back, bit for bit") {
  std::mt19937 random(5);
  for (const int d : {64, 96, 128, 256}) {
    for (const int bits : {2, 4}) {
      for (const reference::Options& options : policies()) {
        Setting s{{d, 1, 1, bits, 1}, options};
        s.value_group = random() % 2 == 0 ? d : d % 64 == 0 ? 64 : 32;
        const Parts parts = make_parts(s, random);
        CHECK(tiered_supported(s.key_format(), s.value_format()), s.describe());
        const TieredBlock layout = tiered_block(s.key_format(), s.value_format(), parts.keys.data());
        std::vector<uint8_t> block(static_cast<size_t>(layout.bytes()), 0xaa), keys(parts.keys.size() + 64, 0xcc),
            values(parts.values.size());
        pack_tiered(s.key_format(), s.value_format(), parts.keys.data(), parts.values.data(), block.data());
        const size_t bytes =
            unpack_tiered(s.key_format(), s.value_format(), layout, block.data(), keys.data(), values.data());
        CHECK(bytes == parts.keys.size(), s.describe() << ": " << bytes);
        keys.resize(parts.keys.size());
        CHECK(keys == parts.keys, s.describe() << ": keys");
        CHECK(values == parts.values, s.describe() << ": values");
      }
    }
  }
}

HOST_CASE("tiered pages: key bounds are at least half of a range, and little more") {
  for (int bits = 0; bits <= 0x7bff; ++bits) {
    const double range = reference::half_value(static_cast<uint16_t>(bits));
    const double bound = reference::half_value(static_cast<uint16_t>(half_range_bound(bits) << 8));
    CHECK(bound >= range / 2, bits);
    CHECK(bound <= 1.25 * range / 2 || range < 0x800 * std::ldexp(1.0, -24), bits);
  }
}

HOST_CASE("tiered pages: products of values fill 16 bits, and no more") {
  for (int bits = 0; bits <= 0x7bff; ++bits) {
    const uint32_t word = rounding_bias(bits);
    float bias;
    std::memcpy(&bias, &word, 4);
    const double units = reference::half_value(static_cast<uint16_t>(bits)) / (bias / 12582912.0);
    CHECK(units <= 65504, bits << ": " << units);
    CHECK(units >= 32768 || bits == 0, bits << ": " << units);
  }
}

HOST_CASE("tiered pages: formats without a kernel") {
  Setting s{{128, 1, 1, 2, 1}};
  kvasir::PageFormat values = s.value_format();
  values.bits = 8;
  CHECK(!tiered_supported(s.key_format(), values), "8 bits");
  values = s.value_format();
  values.axis = kvasir::Axis::kChannel;
  CHECK(!tiered_supported(s.key_format(), values), "by channel");
  s.shape.head_dim = 80;
  CHECK(!tiered_supported(s.key_format(), s.value_format()), "80 channels");
}

class Batch {
 public:
  explicit Batch(const Setting& setting) : setting_(setting), random_(11) {
    TieredShape shape = setting_.shape;
    const TieredFormat format = tiered_format(setting_.key_format(), setting_.value_format());
    shape.key_group = format.key_group;
    shape.value_group = format.value_group;
    shape.key_grid = format.key_grid;
    shape.value_grid = format.value_grid;
    CUDA(plan_tiered(shape, &plan_));
    std::vector<DeviceSequence> sequences;
    for (const Length& length : setting_.lengths) sequences.push_back(build(length));
    const TieredShape& s = setting_.shape;
    const size_t numbers = sequences.size() * s.kv_heads * s.group * s.head_dim;
    std::normal_distribution<float> normal;
    std::vector<uint16_t> narrow;
    for (size_t i = 0; i < numbers; ++i) {
      const float x = 0.6f * normal(random_) * (i % 17 == 2 ? 4.0f : 1.0f);
      narrow.push_back(reference::half_nearest(x));
      queries_.push_back(setting_.type == kvasir::ElementType::kFloat32
                             ? x
                             : static_cast<float>(reference::half_value(narrow.back())));
    }
    request_.sequences = upload(sequences);
    request_.count = static_cast<int>(sequences.size());
    request_.queries = setting_.type == kvasir::ElementType::kFloat32 ? static_cast<const void*>(upload(queries_))
                                                                      : static_cast<const void*>(upload(narrow));
    request_.outputs = upload(std::vector<float>(numbers, NAN));
    request_.type = setting_.type;
    request_.softmax_scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    request_.workspace = upload(std::vector<uint8_t>(plan_.workspace_bytes, 0xff));
    CUDA(clear_workspace(plan_, request_.workspace, nullptr));
  }
  ~Batch() {
    for (void* memory : memory_) cudaFree(memory);
  }

  std::vector<float> attend() {
    CUDA(launch_tiered(plan_, request_, nullptr));
    CUDA(cudaDeviceSynchronize());
    std::vector<float> out(queries_.size());
    if (setting_.type == kvasir::ElementType::kFloat32) {
      CUDA(cudaMemcpy(out.data(), request_.outputs, 4 * out.size(), cudaMemcpyDeviceToHost));
      return out;
    }
    std::vector<uint16_t> narrow(out.size());
    CUDA(cudaMemcpy(narrow.data(), request_.outputs, 2 * out.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(reference::half_value(narrow[i]));
    return out;
  }

  std::vector<double> expected() const {
    const TieredShape& s = setting_.shape;
    const size_t row = static_cast<size_t>(s.kv_heads) * s.group * s.head_dim;
    std::vector<double> out;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const int64_t tokens = static_cast<int64_t>(keys_[i].size()) / s.kv_heads / s.head_dim;
      std::vector<double> one(row, 0.0);
      if (tokens > 0) {
        one = reference::attention({s.kv_heads * s.group, s.kv_heads, s.head_dim}, keys_[i].data(), values_[i].data(),
                                   0, tokens, queries_.data() + i * row, 1);
      }
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }

  bool workspace_is_clear() const {
    std::vector<uint8_t> bytes(plan_.partials_offset);
    CUDA(cudaMemcpy(bytes.data(), request_.workspace, bytes.size(), cudaMemcpyDeviceToHost));
    return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
  }

 private:
  template <class T>
  T* upload(const std::vector<T>& values) {
    void* memory = nullptr;
    CUDA(cudaMalloc(&memory, sizeof(T) * values.size() + 16));
    if (!values.empty()) CUDA(cudaMemcpy(memory, values.data(), sizeof(T) * values.size(), cudaMemcpyHostToDevice));
    memory_.push_back(memory);
    return static_cast<T*>(memory);
  }

  // Rows of one head are [tokens][d]; what attention sees is [tokens][heads][d].
  void see(const std::vector<std::vector<float>>& keys, const std::vector<std::vector<float>>& values, int first) {
    const size_t d = static_cast<size_t>(setting_.shape.head_dim);
    for (size_t t = static_cast<size_t>(first); t < keys[0].size() / d; ++t) {
      for (size_t h = 0; h < keys.size(); ++h) {
        keys_.back().insert(keys_.back().end(), keys[h].begin() + t * d, keys[h].begin() + (t + 1) * d);
        values_.back().insert(values_.back().end(), values[h].begin() + t * d, values[h].begin() + (t + 1) * d);
      }
    }
  }

  RowSpan rows(int hidden, int count) {
    const int d = setting_.shape.head_dim, heads = setting_.shape.kv_heads, end = hidden + count;
    const RowTileLayout layout = {d};
    const int tiles = (end + 15) / 16;
    const size_t block_bytes = static_cast<size_t>(heads) * layout.bytes();
    std::vector<uint8_t> bytes(block_bytes * tiles, 0);
    const auto offset = [&](int tile) { return static_cast<size_t>(tiles - 1 - tile) * block_bytes; };
    std::vector<std::vector<float>> keys(heads), values(heads);
    for (int h = 0; h < heads; ++h) {
      make_rows(random_, d, end, setting_.even, keys[h], values[h]);
      for (int t = 0; t < end; ++t) {
        uint8_t* tile = bytes.data() + offset(t / 16) + static_cast<size_t>(h) * layout.bytes();
        for (int c = 0; c < d; ++c) {
          const uint16_t k = reference::half_nearest(keys[h][t * d + c]),
                         v = reference::half_nearest(values[h][t * d + c]);
          std::memcpy(tile + layout.key_byte(t % 16, c), &k, 2);
          std::memcpy(tile + layout.value_byte(t % 16, c), &v, 2);
        }
      }
    }
    see(keys, values, hidden);
    const auto memory = reinterpret_cast<uint64_t>(upload(bytes));
    std::vector<uint64_t> blocks;
    for (int tile = 0; tile < tiles; ++tile) blocks.push_back(memory + offset(tile));
    return {upload(blocks), hidden, end};
  }

  DeviceSequence build(const Length& length) {
    const int heads = setting_.shape.kv_heads;
    keys_.emplace_back();
    values_.emplace_back();
    DeviceSequence sequence = {};
    if (length.sinks > 0) sequence.sinks = rows(0, length.sinks);
    std::vector<uint64_t> table;
    for (int p = 0; p < length.pages; ++p) {
      if (p < 5) {  // later pages repeat them
        std::vector<uint8_t> page(static_cast<size_t>(tiered_table_bytes(heads)), 0);
        page_keys_.emplace_back();
        page_values_.emplace_back();
        for (int h = 0; h < heads; ++h) {
          const Parts parts = make_parts(setting_, random_);
          const TieredBlock layout = tiered_block(setting_.key_format(), setting_.value_format(), parts.keys.data());
          const TieredPlace place = {static_cast<uint32_t>(page.size()), static_cast<uint16_t>(layout.n16),
                                     static_cast<uint16_t>(layout.n4)};
          std::memcpy(page.data() + sizeof place * h, &place, sizeof place);
          page.resize(page.size() + static_cast<size_t>(layout.bytes()));
          pack_tiered(setting_.key_format(), setting_.value_format(), parts.keys.data(), parts.values.data(),
                      page.data() + place.offset);
          page_keys_.back().push_back(parts.key_rows);
          page_values_.back().push_back(parts.value_rows);
        }
        addresses_.push_back(reinterpret_cast<uint64_t>(upload(page)));
      }
      const size_t which = addresses_.size() - static_cast<size_t>(p < 5 ? 1 : 1 + p % 5);
      table.push_back(addresses_[which]);
      see(page_keys_[which], page_values_[which], p == 0 ? length.hidden : 0);
    }
    sequence.pages = upload(table);
    sequence.page_count = length.pages;
    sequence.hidden_tokens = length.hidden;
    if (length.window > 0) sequence.window = rows(length.window_begin, length.window);
    return sequence;
  }

  const Setting setting_;
  std::mt19937 random_;
  TieredPlan plan_ = {};
  TieredRequest request_ = {};
  std::vector<float> queries_;
  std::vector<std::vector<float>> keys_, values_;  // by sequence, visible tokens
  std::vector<std::vector<std::vector<float>>> page_keys_, page_values_;
  std::vector<uint64_t> addresses_;
  std::vector<void*> memory_;
};

void check_attention(const Setting& s) {
  Batch batch(s);
  const std::vector<float> got = batch.attend();
  const double error = reference::nmse(got.data(), batch.expected());
  std::printf("     %s: nmse %.1e\n", s.describe().c_str(), error);
  CHECK(error <= 1e-6, s.describe() << ": " << error);
  CHECK(batch.workspace_is_clear(), s.describe());
}

DEVICE_CASE("tiered attention: head dims, value bits, tiers") {
  for (const int d : {64, 96, 128, 256}) {
    for (const int bits : {2, 4}) {
      for (const reference::Options& options : reference::tiered::half_variants()) {
        if (d != 128 && options.count("group") != 0) continue;
        Setting s{{d, 2, 4, bits, 1}, options};
        s.lengths = {{3, 3, 20}};
        check_attention(s);
      }
    }
  }
}

DEVICE_CASE("tiered attention: bands, full and not") {
  for (const int d : {96, 128, 256}) {
    for (const reference::Options& options : policies()) {
      if (options.count("key_bits") == 0) continue;
      Setting s{{d, 2, 4, d == 128 ? 4 : 2, 1}, options};
      s.value_group = d == 256 ? 128 : d;
      s.lengths = {{0, 19, 7}};
      check_attention(s);
    }
  }
}

DEVICE_CASE("tiered attention: values of like size, whose products are counted by the page's ranges") {
  for (const int d : {64, 96, 128, 256}) {
    for (const int bits : {2, 4}) {
      Setting s{{d, 2, 4, bits, 1}};
      s.even = true;
      s.value_group = d == 256 ? 96 : 32;
      s.lengths = {{3, 19, 20}};
      check_attention(s);
    }
  }
}

DEVICE_CASE("tiered attention: groups of query heads and of values") {
  for (const int group : {1, 3, 7, 8}) {
    Setting s{{128, 3, group, 2, 2}};
    s.value_group = group % 2 == 0 ? 64 : 128;
    s.lengths = {{0, 2, 0}, {5, 20, 33}};
    check_attention(s);
  }
}

DEVICE_CASE("tiered attention: a ragged batch in one launch") {
  Setting s{{128, 2, 4, 2, 7}};
  s.lengths = {{32, 9, 17}, {0, 0, 0}, {0, 1, 0}, {0, 0, 40}, {32, 140, 255, 0, 9}, {4, 3, 16, 127}, {0, 2, 1, 50}};
  check_attention(s);
  s.type = kvasir::ElementType::kFloat16;
  s.lengths = {{0, 4, 3}};
  check_attention(s);
}

DEVICE_CASE("tiered attention: many sequences, a long one, twice the same bits") {
  Setting s{{128, 8, 4, 2, 20}};
  for (int i = 0; i < 20; ++i) s.lengths.push_back({i % 3, 1 + i * 7 % 11, i});
  check_attention(s);
  s.lengths = {{32, 400, 128}};
  Batch batch(s);
  const std::vector<float> first = batch.attend(), second = batch.attend();
  CHECK(std::memcmp(first.data(), second.data(), 4 * first.size()) == 0, "equal input gives equal bits");
  const double error = reference::nmse(first.data(), batch.expected());
  CHECK(error <= 1e-6, error);
}

DEVICE_CASE("tiered attention: shapes that are refused") {
  TieredPlan plan;
  CHECK(plan_tiered({80, 1, 1, 2, 1}, &plan) == cudaErrorInvalidValue, "80 channels");
  CHECK(plan_tiered({128, 1, 1, 8, 1}, &plan) == cudaErrorInvalidValue, "8-bit values");
  CHECK(plan_tiered({128, 1, 0, 2, 1}, &plan) == cudaErrorInvalidValue, "no query heads");
}

}  // namespace
