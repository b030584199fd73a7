// Pages with labels from the device are those that docs/format.md prescribes once labels are chosen, and labels are
// those of the nearest patterns, less what the tests of codec pattern refuse. Where blocks have too little shared
// memory for a head dim, it is refused.
#include "kernels/cuda/pattern/seal.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "check.h"
#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/layout/pack.h"
#include "reference/half.h"
#include "reference/pattern_page.h"

namespace {

using namespace kvasir::cuda;

struct Setting {
  int head_dim;
  int bits[2];
  int fixed;
  int first_adding_page;  // of the sequence
  int first_page = 0;     // of the launch
  int pages = 2;
  MatchOptions options[2] = {{true, false, true, 0.9f}, {true, false, true, 0.9f}};
  int kv_heads = 2;
  int grid = -1;  // of both sides, as the codec's option; -1: what it takes by default

  reference::PageShape shape(int side) const {
    const reference::Options given = grid < 0 ? reference::Options{} : reference::Options{{"grid", grid}};
    return reference::pattern::shape(static_cast<reference::Side>(side), bits[side], head_dim, given);
  }
};

class DeviceBytes {
 public:
  explicit DeviceBytes(const std::vector<uint8_t>& bytes) : size_(bytes.size()) {
    CUDA(cudaMalloc(&memory_, size_ + 16));
    CUDA(cudaMemcpy(memory_, bytes.data(), size_, cudaMemcpyHostToDevice));
  }
  ~DeviceBytes() { cudaFree(memory_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(memory_); }
  std::vector<uint8_t> read() const {
    std::vector<uint8_t> bytes(size_);
    CUDA(cudaMemcpy(bytes.data(), memory_, size_, cudaMemcpyDeviceToHost));
    return bytes;
  }

 private:
  size_t size_;
  void* memory_ = nullptr;
};

float rounded(double x) { return static_cast<float>(reference::half_value(reference::half_nearest(x))); }

// One side: tables and rows of all heads. Rows are near patterns, or not.
struct SideData {
  std::vector<reference::PatternTable> tables;  // of each head
  std::vector<std::vector<float>> rows;         // of each head: [pages * 128][d]
};

SideData make_side(const Setting& s, std::mt19937& random) {
  std::normal_distribution<double> normal;
  const int added = std::max(0, s.first_page + s.pages - s.first_adding_page);
  SideData side;
  for (int h = 0; h < s.kv_heads; ++h) {
    reference::PatternTable table;
    table.head_dim = s.head_dim;
    table.fixed = s.fixed;
    table.first_adding_page = s.first_adding_page;
    for (int i = 0; i < (s.fixed + added) * s.head_dim; ++i) table.vectors.push_back(rounded(2 * normal(random)));
    std::vector<float> rows;
    for (int t = 0; t < s.pages * 128; ++t) {
      const int page = s.first_page + t / 128;
      const int label = static_cast<int>(random() % (table.labels(page) + 1));
      const float* vector = table.vector(page, label);
      const double noise = random() % 4 == 0 ? 3.0 : 0.5;
      for (int c = 0; c < s.head_dim; ++c) {
        rows.push_back(rounded((vector == nullptr ? 0.0 : vector[c]) + noise * normal(random)));
      }
    }
    side.tables.push_back(table);
    side.rows.push_back(rows);
  }
  return side;
}

double squared_ranges(const std::vector<float>& rows, int d) {
  double sum = 0;
  for (int c = 0; c < d; ++c) {
    float low = rows[c], high = low;
    for (int t = 1; t < 128; ++t) {
      low = std::min(low, rows[t * d + c]);
      high = std::max(high, rows[t * d + c]);
    }
    const float range = high - low;
    sum += static_cast<double>(range) * range;
  }
  return sum;
}

// docs/format.md and the rules of codec pattern.
std::vector<uint8_t> choose_labels(const reference::PageShape& shape, const MatchOptions& options, const float* rows,
                                   const reference::PatternTable& table, int page) {
  const int d = shape.head_dim;
  std::vector<uint8_t> labels;
  for (int t = 0; t < 128; ++t) {
    int label = reference::pattern::nearest_label(rows + t * d, table, page, options.squared, options.raw);
    if (shape.side == reference::Side::kValues && label > 0) {
      const float flat = reference::pattern::residual_range(rows + t * d, table.vector(page, label), d);
      const float raw = reference::pattern::residual_range(rows + t * d, nullptr, d);
      if (options.ratio >= 0 && !(flat <= options.ratio * raw)) label = 0;
    }
    labels.push_back(static_cast<uint8_t>(label));
  }
  if (shape.side == reference::Side::kKeys && options.accept) {
    const std::vector<float> flat = reference::pattern::residuals(shape, rows, labels.data(), table, page);
    const std::vector<float> raw(rows, rows + 128 * d);
    if (!(squared_ranges(flat, d) < squared_ranges(raw, d))) labels.assign(128, 0);
  }
  return labels;
}

void check_seal(const Setting& s) {
  std::ostringstream text;
  text << "d=" << s.head_dim << " bits " << s.bits[0] << "/" << s.bits[1] << " fixed " << s.fixed << " adding from "
       << s.first_adding_page << " first page " << s.first_page;
  std::mt19937 random(static_cast<unsigned>(s.head_dim + s.fixed));
  const int d = s.head_dim;
  const SideData sides[2] = {make_side(s, random), make_side(s, random)};
  const HeadLayout layout = {d, s.bits[0], s.bits[1]};
  const VectorTableLayout table_layout = {d};
  const int count = sides[0].tables[0].count();
  const int64_t table_stride = table_layout.bytes(count + 3);
  const int rows_before = 3, rows_after = 2;
  const int64_t rows = rows_before + 128 * s.pages + rows_after;

  std::vector<uint8_t> tables[2], staging[2];
  for (int side = 0; side < 2; ++side) {
    tables[side].assign(static_cast<size_t>(table_stride * s.kv_heads), 0);
    staging[side].assign(static_cast<size_t>(rows * d * 2 * s.kv_heads), 0x7b);
    for (int h = 0; h < s.kv_heads; ++h) {
      for (int i = 0; i < count * d; ++i) {
        const uint16_t half = reference::half_nearest(sides[side].tables[h].vectors[i]);
        const int64_t byte = side == 0 ? table_layout.key_byte(i / d, i % d) : table_layout.value_byte(i / d, i % d);
        std::memcpy(tables[side].data() + h * table_stride + byte, &half, 2);
      }
      for (size_t i = 0; i < sides[side].rows[h].size(); ++i) {
        const uint16_t half = reference::half_nearest(sides[side].rows[h][i]);
        std::memcpy(staging[side].data() + ((h * rows + rows_before) * d + i) * 2, &half, 2);
      }
    }
  }
  const size_t head_bytes = kBothLabelBytes + layout.bytes(), page_bytes = head_bytes * s.kv_heads;
  const DeviceBytes key_table(tables[0]), value_table(tables[1]), keys(staging[0]), values(staging[1]);
  const DeviceBytes memory(std::vector<uint8_t>((page_bytes + 128) * s.pages, 0xa5));
  std::vector<uint8_t*> pages;
  for (int p = 0; p < s.pages; ++p) pages.push_back(memory.data() + (page_bytes + 128) * p);

  PatternSealRequest request = {};
  request.shape = {s.kv_heads, d};
  for (int side = 0; side < 2; ++side) {
    request.bits[side] = s.bits[side];
    request.grids[side] = s.shape(side).cells ? kvasir::Grid::kCells : kvasir::Grid::kEnds;
    request.options[side] = s.options[side];
    request.tables[side] = {
        (side == 0 ? key_table : value_table).data(), table_stride, s.fixed, count - s.fixed, s.first_adding_page, 0};
  }
  request.staging = {{reinterpret_cast<uint16_t*>(keys.data()), reinterpret_cast<uint16_t*>(values.data())}, rows};
  request.first_row = rows_before;
  request.first_page = s.first_page;
  request.pages = pages.data();
  request.page_count = s.pages;
  const cudaError_t error = seal_pattern_pages(request, nullptr);
  if (!seals_pattern_pages(d)) {
    CHECK(error == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess, text.str() << ": " << error);
    return;
  }
  CHECK(error == cudaSuccess, text.str() << ": " << cudaGetErrorString(error));
  CUDA(cudaDeviceSynchronize());
  const std::vector<uint8_t> got = memory.read();

  int64_t labelled = 0, wrong_labels = 0;
  for (int p = 0; p < s.pages; ++p) {
    std::vector<uint8_t> expected((page_bytes + 128), 0xa5);
    for (int h = 0; h < s.kv_heads; ++h) {
      uint8_t* block = expected.data() + h * head_bytes;
      for (int side = 0; side < 2; ++side) {
        const reference::PageShape shape = s.shape(side);
        const float* page_rows = sides[side].rows[h].data() + static_cast<size_t>(p) * 128 * d;
        const reference::PatternTable& table = sides[side].tables[h];
        std::vector<uint8_t> labels(128, 0);
        if (s.options[side].present) {
          labels = choose_labels(shape, s.options[side], page_rows, table, s.first_page + p);
          const std::vector<uint8_t> bytes =
              reference::pattern::encode(shape, page_rows, labels.data(), table, s.first_page + p);
          side == 0 ? pack_keys(layout, bytes.data(), block + kBothLabelBytes)
                    : pack_values(layout, bytes.data(), block + kBothLabelBytes);
        }
        for (int t = 0; t < 128; ++t) {
          const int byte = side == 0 ? key_label_byte(t) : value_label_byte(t);
          block[byte] = labels[t];
          labelled += labels[t] != 0;
          wrong_labels += got[(page_bytes + 128) * p + h * head_bytes + byte] != labels[t];
        }
      }
    }
    const auto differ = std::mismatch(expected.begin(), expected.end(), got.begin() + (page_bytes + 128) * p);
    CHECK(differ.first == expected.end(), text.str()
                                              << " page " << p << " byte " << differ.first - expected.begin() << " of "
                                              << head_bytes << " a head, wrong labels so far " << wrong_labels);
  }
  CHECK(labelled > 0, text.str() << ": nothing was labelled");
}

DEVICE_CASE("seal patterns: every width and head dim") {
  for (const int d : {64, 96, 128, 256}) {
    for (const int bits : {1, 2, 3, 4, 8}) {
      for (const int grid : {0, 1}) {
        Setting setting = {d, {bits, bits}, 32, 1 << 30};
        setting.grid = grid;
        check_seal(setting);
      }
    }
    check_seal({d, {2, 4}, 5, 1 << 30});
  }
}

DEVICE_CASE("seal patterns: tables of many sizes") {
  for (const int fixed : {1, 16, 31, 33, 64, 65, 255}) check_seal({128, {2, 2}, fixed, 1 << 30});
  for (const int fixed : {8, 32, 250}) {
    check_seal({128, {2, 2}, fixed, 1, 0, 4});
    check_seal({128, {2, 2}, fixed, 2, 270, 3});
    check_seal({64, {2, 2}, fixed, -5, 255 - fixed, 3});
    check_seal({256, {2, 2}, fixed, 2, 300, 2});
  }
}

DEVICE_CASE("seal patterns: options") {
  Setting setting = {128, {2, 2}, 32, 1 << 30};
  for (const bool squared : {false, true}) {
    for (const bool accept : {false, true}) {
      for (const float ratio : {-1.0f, 0.5f}) {
        for (const bool raw : {false, true}) {
          for (MatchOptions& options : setting.options) options = {true, squared, accept, ratio, raw};
          check_seal(setting);
        }
      }
    }
  }
}

DEVICE_CASE("seal patterns: centres of pages") {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (const int d : {64, 96, 128, 256}) {
    const int heads = 2, pages = 3, first_row = 4, rows = first_row + 128 * pages + 1, first_vector = 14;
    std::vector<uint8_t> staging[2];
    for (auto& side : staging) {
      side.resize(static_cast<size_t>(heads) * rows * d * 2);
      for (size_t i = 0; i < side.size(); i += 2) {
        const uint16_t half = reference::half_nearest(10 * normal(random));
        std::memcpy(side.data() + i, &half, 2);
      }
    }
    const VectorTableLayout layout = {d};
    const int64_t stride = layout.bytes(first_vector + pages + 1);
    const DeviceBytes keys(staging[0]), values(staging[1]);
    const DeviceBytes key_table(std::vector<uint8_t>(stride * heads, 0xa5));
    const DeviceBytes value_table(std::vector<uint8_t>(stride * heads, 0xa5));
    CentreRequest request = {};
    request.shape = {heads, d};
    request.staging = {{reinterpret_cast<uint16_t*>(keys.data()), reinterpret_cast<uint16_t*>(values.data())}, rows};
    request.first_row = first_row;
    request.page_count = pages;
    request.vectors[0] = {key_table.data(), stride};
    request.vectors[1] = {value_table.data(), stride};
    request.first_vector[0] = request.first_vector[1] = first_vector;
    CUDA(add_centres(request, nullptr));
    CUDA(cudaDeviceSynchronize());
    for (int side = 0; side < 2; ++side) {
      std::vector<uint8_t> expected(stride * heads, 0xa5);
      for (int h = 0; h < heads; ++h) {
        for (int p = 0; p < pages; ++p) {
          for (int c = 0; c < d; ++c) {
            double low = INFINITY, high = -INFINITY;
            for (int t = 0; t < 128; ++t) {
              uint16_t half;
              const size_t row = static_cast<size_t>(h) * rows + first_row + p * 128 + t;
              std::memcpy(&half, staging[side].data() + (row * d + c) * 2, 2);
              low = std::min(low, reference::half_value(half));
              high = std::max(high, reference::half_value(half));
            }
            const uint16_t centre = reference::half_nearest(0.5 * low + 0.5 * high);
            const int64_t byte =
                side == 0 ? layout.key_byte(first_vector + p, c) : layout.value_byte(first_vector + p, c);
            std::memcpy(expected.data() + h * stride + byte, &centre, 2);
          }
        }
      }
      CHECK((side == 0 ? key_table : value_table).read() == expected, "d=" << d << " side " << side);
    }
  }
}

DEVICE_CASE("seal patterns: one side alone") {
  Setting setting = {128, {2, 2}, 32, 1 << 30};
  setting.options[0].present = false;
  check_seal(setting);
  setting.options[0].present = true;
  setting.options[1].present = false;
  check_seal(setting);
}

}  // namespace
