#include "pages/page_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "codecs/progressive/formula.h"
#include "kernels/cuda/layout/pack.h"
#include "reference/f16_page.h"
#include "reference/half.h"
#include "reference/progressive_page.h"
#include "reference/uniform_page.h"

namespace page_case {

using namespace kvasir::cuda;

uint16_t bfloat_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>(bits >> 16);
}

TypedNumbers typed(std::vector<float> numbers, kvasir::ElementType type) {
  if (type == kvasir::ElementType::kFloat32) {
    std::vector<uint8_t> bytes = bytes_of(numbers);
    return {std::move(numbers), std::move(bytes)};
  }
  std::vector<uint16_t> narrow;
  for (float& x : numbers) {
    const bool half = type == kvasir::ElementType::kFloat16;
    narrow.push_back(half ? reference::half_nearest(x) : bfloat_bits(x));
    x = static_cast<float>(half ? reference::half_value(narrow.back()) : reference::bfloat_value(narrow.back()));
  }
  return {std::move(numbers), bytes_of(narrow)};
}

Buffer::Buffer(size_t bytes, int fill) : bytes_(bytes) {
  CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(bytes, 16)));
  CUDA(cudaMemset(data_, fill, bytes));
  CUDA(cudaDeviceSynchronize());  // no stream of an engine waits for the one that this was on
}

Buffer::Buffer(const std::vector<uint8_t>& bytes) : Buffer(bytes.size()) {
  CUDA(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  CUDA(cudaDeviceSynchronize());
}

Buffer::~Buffer() { cudaFree(data_); }

std::vector<uint8_t> Buffer::read() const {
  std::vector<uint8_t> bytes(bytes_);
  CUDA(cudaMemcpy(bytes.data(), data_, bytes_, cudaMemcpyDeviceToHost));
  return bytes;
}

namespace {

reference::ReferenceCodec reference_of(const Kind& kind) {
  if (kind.elements == kvasir::Elements::kHalves) return reference::f16_reference();
  return kind.elements == kvasir::Elements::kCodes ? reference::uniform_reference()
                                                   : reference::progressive_reference();
}

reference::PageShape shape_of(reference::Side side, const Kind& kind, int head_dim) {
  return reference_of(kind).shape(side, kind.bits, head_dim, kind.options);
}

float rounded(double x) { return static_cast<float>(reference::half_value(reference::half_nearest(x))); }

}  // namespace

std::string describe(const Setting& setting) {
  std::ostringstream out;
  out << (setting.fragments ? "fragments" : "canonical") << " d " << setting.head_dim;
  for (const Kind* kind : {&setting.keys, &setting.values}) {
    const char* names[] = {"none", "f16", "uniform", "progressive"};
    out << " " << names[static_cast<int>(kind->elements)] << " " << kind->bits;
    for (const auto& [name, value] : kind->options) out << " " << name << "=" << value;
  }
  return out.str();
}

kvasir::PageFormat format_of(reference::Side side, const Kind& kind, int head_dim) {
  const reference::PageShape shape = shape_of(side, kind, head_dim);
  kvasir::PageFormat format;
  format.side = static_cast<kvasir::Side>(side);
  format.head_dim = head_dim;
  format.bits = kind.bits;
  format.elements = kind.elements;
  format.axis = static_cast<kvasir::Axis>(shape.axis);
  format.group = shape.group;
  if (kind.elements == kvasir::Elements::kHalves) return format;
  format.grid = shape.cells ? kvasir::Grid::kCells : kvasir::Grid::kEnds;
  if (kind.elements == kvasir::Elements::kNarrowed && shape.cells) {
    format.numbers[kvasir::progressive::kShift] = static_cast<float>(kvasir::progressive::Shift::kDirect);
  }
  const auto shift = kind.options.find("shift");
  if (shift != kind.options.end()) format.numbers[kvasir::progressive::kShift] = static_cast<float>(shift->second);
  return format;
}

void make_sides(const Setting& setting, SideFormat sides[2]) {
  const kvasir::PageFormat keys = format_of(reference::Side::kKeys, setting.keys, setting.head_dim);
  const kvasir::PageFormat values = format_of(reference::Side::kValues, setting.values, setting.head_dim);
  if (setting.fragments) {
    CHECK(fragment_sides(keys, values, sides), describe(setting));
  } else {
    canonical_sides(setting.kv_heads, keys, values, sides);
  }
}

std::vector<float> hard_rows(int tokens, int head_dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> rows;
  for (int t = 0; t < tokens; ++t) {
    const int kind = t / 16 % 8;  // of sixteen tokens at a time, so that groups along either axis meet all of them
    for (int c = 0; c < head_dim; ++c) {
      double x = normal(random) * (c % 11 == 3 ? 50.0 : 1.0);
      switch (kind) {
        case 1:
          x = t % 16 == 5 ? 0.0 : t % 1000;
          break;
        case 2:
          x = c % 32 == 0 ? (c % 64 == 0 ? 1.0 : -1.0) : random() % 2 ? 0.0 : -0.0;
          break;
        case 3:
          x = std::ldexp(static_cast<double>(random() % 2047) - 1023.0, -24);
          break;
        case 4:
          x = random() % 3 == 0 ? 32752.0 : random() % 2 ? -32752.0 : x;
          break;
        case 5:
          x = static_cast<double>(random() % 17) / 16.0 - 0.25;  // many quotients are ties
          break;
        case 6:
          x = c % 32 == 7 ? 30000.0 : std::ldexp(normal(random), -12);
          break;
        default:
          break;
      }
      rows.push_back(rounded(x));
    }
  }
  return rows;
}

std::vector<std::vector<uint8_t>> encode_layer(const Setting& setting, const std::vector<float> (&rows)[2]) {
  SideFormat sides[2];
  make_sides(setting, sides);
  const HeadLayout layout = setting.fragments ? head_layout(sides[0].format, sides[1].format) : HeadLayout{};
  const size_t head_elements = static_cast<size_t>(setting.pages) * kvasir::kPageTokens * setting.head_dim;
  std::vector<std::vector<uint8_t>> pages;
  for (int p = 0; p < setting.pages; ++p) {
    std::vector<uint8_t> page(static_cast<size_t>(page_bytes(setting.kv_heads, sides)));
    for (int h = 0; h < setting.kv_heads; ++h) {
      for (int s = 0; s < 2; ++s) {
        const Kind& kind = s == 0 ? setting.keys : setting.values;
        const auto side = static_cast<reference::Side>(s);
        const float* from = rows[s].data() + h * head_elements + size_t{128} * p * setting.head_dim;
        const std::vector<uint8_t> bytes = reference_of(kind).encode(shape_of(side, kind, setting.head_dim), from);
        if (!setting.fragments) {
          CHECK(bytes.size() == static_cast<size_t>(sides[s].bytes()), describe(setting));
          std::copy(bytes.begin(), bytes.end(), page.begin() + sides[s].offset + h * sides[s].stride);
        } else if (s == 0) {
          pack_keys(layout, bytes.data(), page.data() + h * static_cast<size_t>(layout.bytes()));
        } else {
          pack_values(layout, bytes.data(), page.data() + h * static_cast<size_t>(layout.bytes()));
        }
      }
    }
    pages.push_back(page);
  }
  return pages;
}

Layer make_layer(const Setting& setting, unsigned seed, bool decode) {
  Layer layer;
  const int tokens = setting.pages * kvasir::kPageTokens;
  for (int s = 0; s < 2; ++s) {
    const Kind& kind = s == 0 ? setting.keys : setting.values;
    const auto side = static_cast<reference::Side>(s);
    const reference::ReferenceCodec codec = reference_of(kind);
    const reference::PageShape shape = shape_of(side, kind, setting.head_dim);
    for (int h = 0; h < setting.kv_heads; ++h) {
      const std::vector<float> rows = hard_rows(tokens, setting.head_dim, seed + 2 * h + s);
      for (int p = 0; decode && p < setting.pages; ++p) {
        const auto bytes = codec.encode(shape, rows.data() + size_t{128} * p * setting.head_dim);
        const auto decoded = codec.decode(shape, bytes.data()).rows;
        layer.decoded[s].insert(layer.decoded[s].end(), decoded.begin(), decoded.end());
      }
      layer.rows[s].insert(layer.rows[s].end(), rows.begin(), rows.end());
    }
  }
  layer.pages = encode_layer(setting, layer.rows);
  return layer;
}

std::string difference(const std::vector<uint8_t>& got, const std::vector<uint8_t>& expected) {
  if (got == expected) return "";
  std::ostringstream out;
  if (got.size() != expected.size()) {
    out << got.size() << " bytes instead of " << expected.size();
    return out.str();
  }
  size_t count = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    if (count++ < 4) out << "[" << i << "] " << int{got[i]} << " not " << int{expected[i]} << "; ";
  }
  out << count << " of " << got.size() << " bytes differ";
  return out.str();
}

}  // namespace page_case
