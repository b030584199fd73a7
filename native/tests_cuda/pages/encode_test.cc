// Sealing: pages from the device are those that docs/format.md prescribes, byte for byte, and nothing else is written,
// from the staging and from rows as they are appended.
#include "kernels/cuda/pages/encode.h"

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cuda/pages/canonical_pack.cuh"
#include "kernels/cuda/pages/fragment_pack.cuh"
#include "kernels/cuda/rows/rows.h"
#include "pages/page_case.h"
#include "reference/half.h"
#include "reference/uniform_page.h"

namespace {

using namespace kvasir::cuda;
using namespace page_case;

constexpr int kFirstRow = 5, kRowsAfter = 7, kGuard = 256;

std::vector<uint16_t> staged(const std::vector<float>& rows, const Setting& setting) {
  const int64_t tokens = int64_t{setting.pages} * kvasir::kPageTokens;
  std::vector<uint16_t> staging;
  for (int h = 0; h < setting.kv_heads; ++h) {
    staging.resize(staging.size() + kFirstRow * setting.head_dim, 0x7bff);  // rows around are far from the pages' own
    for (int64_t i = 0; i < tokens * setting.head_dim; ++i) {
      staging.push_back(reference::half_nearest(rows[h * tokens * setting.head_dim + i]));
    }
    staging.resize(staging.size() + kRowsAfter * setting.head_dim, 0xfbff);
  }
  return staging;
}

// Codes of one part's slabs as the lanes of the kernel's warps pack them, with elements fetched by definition.
template <int kSpan>
void pack_on_host(const SideFormat& side, const uint16_t* rows, const std::vector<uint8_t>& expected, uint8_t* out) {
  const int d = side.format.head_dim, parts = side.parts();
  const bool keys = side.format.side == kvasir::Side::kKeys, coded = side.format.elements != kvasir::Elements::kHalves;
  const bool exact = side.format.elements == kvasir::Elements::kNarrowed;
  const bool per_token = coded && side.format.axis == kvasir::Axis::kToken;
  for (int s = 0; s < d / kSpan; ++s) {
    const Slab slab = {side.part(), keys, per_token, parts > 1 ? 0 : s};
    uint8_t* part = out + (parts > 1 ? s * slab.part.bytes() : 0);
    std::vector<ScalePair> scales(64);
    std::vector<float> ranges(128);
    std::vector<double> inverse16(128);
    for (int i = 0; coded && i < (per_token ? kvasir::kPageTokens : kSpan); ++i) {
      // Parameters come from the expected bytes: the test of the launch compares them.
      const int at = slab.part.parameter_byte(slab.stretch * kSpan + i);
      uint16_t stored[2];
      std::memcpy(stored, expected.data() + (part - out) + at, 4);
      std::memcpy(part + at, stored, 4);
      const Quantiser q =
          quantiser_of({stored[1], stored[0]}, kvasir::uniform::codes_of(slab.part.element_bits(), side.format.grid));
      scales[i / 2].lo[i % 2] = q.lo;
      scales[i / 2].inverse[i % 2] = q.inverse;
      ranges[i] = q.range;
      inverse16[i] = inverse16_of(q.range, side.format.grid);
    }
    const SlabQuantisers quantisers = {scales.data(), ranges.data(), inverse16.data(),
                                       side.format.grid == kvasir::Grid::kCells, exact && coded_side(side).cut()};
    const auto element = [&](int x, int y) -> uint32_t {
      const int token = keys ? y : x, channel = s * kSpan + (keys ? x : y);
      return rows[token * d + channel];
    };
    for (int thread = 0; thread < 2 * kSpan; ++thread) {
      const int warp = thread / 32, lane = thread % 32;
      const auto store = [&](int group, const uint32_t(&words)[4]) {
        std::memcpy(part + slab.part.parameter_bytes() + group * kGroupBytes + 16 * lane, words, 16);
      };
      const auto pair = [&](int x, int y) { return element(x, y) | element(x + 1, y) << 16; };
      const auto fetch = [&](int x, int y, uint32_t(&words)[4]) {
        for (int i = 0; i < 4; ++i) words[i] = pair(x + 8 * i + 2 * (lane % 4), y + lane / 4);
      };
      const auto fetch16 = [&](int x, int y, uint32_t(&words)[4]) {
        for (int i = 0; i < 4; ++i) words[i] = pair(x + 8 * (i / 2) + 2 * (lane % 4), y + 8 * (i % 2) + lane / 4);
      };
      if (coded) {
        pack_codes<kSpan>(slab, exact, quantisers, warp, kSpan / 16, lane, fetch, store);
      } else {
        pack_halves<kSpan>(slab, warp, kSpan / 16, fetch16, store);
      }
    }
  }
}

// A canonical part, group by group and word by word.
void pack_on_host(const SideFormat& format, const uint16_t* rows, uint8_t* out) {
  const CodedSide side = coded_side(format);
  std::vector<Quantiser> quantisers;
  std::vector<double> inverse16;
  for (int i = 0; i < side.layout.entries * side.layout.groups; ++i) {
    const kvasir::uniform::Parameters stored = group_parameters(side, rows, i);
    const int entry = i % side.layout.entries, group = i / side.layout.entries;
    std::memcpy(out + side.layout.lo_offset(group) + 2 * entry, &stored.lo, 2);
    std::memcpy(out + side.layout.range_offset(group) + 2 * entry, &stored.range, 2);
    quantisers.push_back(quantiser_of(stored, side.codes));
    inverse16.push_back(inverse16_of(quantisers.back().range, format.format.grid));
  }
  for (int p = 0; p < side.layout.plane_count; ++p) {
    for (int i = 0; i < plane_words(side, p); ++i) {
      const uint32_t word = plane_word(side, rows, quantisers.data(), inverse16.data(), p, i);
      std::memcpy(out + side.layout.plane_offset[p] + 4 * i, &word, 4);
    }
  }
}

// The steps of the kernels on the host.
void check_packing(const Setting& setting, const Layer& layer) {
  SideFormat sides[2];
  make_sides(setting, sides);
  const int d = setting.head_dim;
  for (int s = 0; s < 2; ++s) {
    if (!setting.fragments && sides[s].format.elements == kvasir::Elements::kHalves) continue;  // is copied
    const std::vector<uint16_t> rows = staged(layer.rows[s], setting);
    const size_t bytes = static_cast<size_t>(sides[s].bytes());
    const int64_t head_rows = kFirstRow + setting.pages * kvasir::kPageTokens + kRowsAfter;
    for (int h = 0; h < setting.kv_heads; ++h) {
      for (int p = 0; p < setting.pages; ++p) {
        const auto from = layer.pages[p].begin() + sides[s].offset + h * sides[s].stride;
        const std::vector<uint8_t> expected(from, from + static_cast<int64_t>(bytes));
        const uint16_t* page_rows = rows.data() + (h * head_rows + kFirstRow + p * kvasir::kPageTokens) * d;
        std::vector<uint8_t> got(bytes, 0xa5);
        if (!setting.fragments) {
          pack_on_host(sides[s], page_rows, got.data());
        } else if (d == 64) {
          pack_on_host<64>(sides[s], page_rows, expected, got.data());
        } else if (d == 96) {
          pack_on_host<96>(sides[s], page_rows, expected, got.data());
        } else {
          pack_on_host<128>(sides[s], page_rows, expected, got.data());
        }
        const std::string wrong = difference(got, expected);
        CHECK(wrong.empty(), describe(setting) << " side " << s << " head " << h << ": " << wrong);
      }
    }
  }
}

// Memory of the pages of a setting, with guards behind each.
class Pages {
 public:
  explicit Pages(const Setting& setting, size_t page_bytes)
      : bytes_(page_bytes + kGuard), memory_(bytes_ * setting.pages) {
    for (int p = 0; p < setting.pages; ++p) list_.push_back(memory_.data() + bytes_ * p);
  }
  uint8_t* const* list() const { return list_.data(); }
  std::vector<uint8_t> read() const { return memory_.read(); }
  void check(const Setting& setting, const Layer& layer, const char* rows) const {
    const std::vector<uint8_t> got = read();
    for (int p = 0; p < setting.pages; ++p) {
      std::vector<uint8_t> expected = layer.pages[p];
      expected.resize(bytes_, 0xa5);
      const std::vector<uint8_t> page(got.begin() + bytes_ * p, got.begin() + bytes_ * (p + 1));
      const std::string wrong = difference(page, expected);
      CHECK(wrong.empty(), describe(setting) << ", " << rows << ", page " << p << ": " << wrong);
    }
  }

 private:
  size_t bytes_;
  Buffer memory_;
  std::vector<uint8_t*> list_;
};

EncodeRequest request_for(const Setting& setting, const Pages& pages) {
  EncodeRequest request = {};
  request.shape = {setting.kv_heads, setting.head_dim};
  make_sides(setting, request.sides);
  request.first_row = kFirstRow;
  request.pages = pages.list();
  request.page_count = setting.pages;
  return request;
}

void encode(const Setting& setting, const EncodeRequest& request) {
  const cudaError_t error = encode_pages(request, nullptr);
  CHECK(error == cudaSuccess, describe(setting) << ": " << cudaGetErrorString(error));
  CUDA(cudaDeviceSynchronize());
}

// [heads][tokens][d] as float32 [tokens][heads][d], behind rows that are far from them.
std::vector<float> appended(const std::vector<float>& rows, const Setting& setting) {
  const int64_t tokens = int64_t{setting.pages} * kvasir::kPageTokens;
  const int heads = setting.kv_heads, d = setting.head_dim;
  std::vector<float> out(static_cast<size_t>(kFirstRow) * heads * d, 30000.0f);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      const auto from = rows.begin() + (h * tokens + t) * d;
      out.insert(out.end(), from, from + d);
    }
  }
  return out;
}

// The steps on the host or, in device cases, the launch.
void check_encode(bool device, const Setting& setting) {
  const Layer layer = make_layer(setting, 1);
  if (!device) return check_packing(setting, layer);
  const Pages pages(setting, layer.pages[0].size());
  const Buffer keys(bytes_of(staged(layer.rows[0], setting))), values(bytes_of(staged(layer.rows[1], setting)));
  EncodeRequest request = request_for(setting, pages);
  request.staging = {{keys.as<uint16_t>(), values.as<uint16_t>()},
                     kFirstRow + setting.pages * kvasir::kPageTokens + kRowsAfter};
  encode(setting, request);
  pages.check(setting, layer, "staged");
  if (!setting.fragments) return;

  const Buffer new_keys(bytes_of(appended(layer.rows[0], setting)));
  const Buffer new_values(bytes_of(appended(layer.rows[1], setting)));
  const Buffer refused(8, 0);
  InputRows input = {};
  input.sides[0] = new_keys.data();
  input.sides[1] = new_values.data();
  for (auto& type : input.types) type = kvasir::ElementType::kFloat32;
  input.tokens = kFirstRow + setting.pages * kvasir::kPageTokens;
  input.refused = refused.as<uint32_t>();
  const Pages others(setting, layer.pages[0].size());
  request = request_for(setting, others);
  request.input = &input;
  encode(setting, request);
  others.check(setting, layer, "appended");
  CHECK(refused.read() == std::vector<uint8_t>(8, 0), describe(setting));
}

void check_fragments(bool device) {
  for (const int d : {64, 96, 128, 256}) {
    check_encode(device, {d, 3, 2, kHalves, kHalves, true});
    for (const double grid : {0.0, 1.0}) {
      const reference::Options options = {{"grid", grid}}, by_token = {{"grid", grid}, {"axis", 1.0}};
      for (const int bits : {1, 2, 3, 4, 8, 16}) {
        check_encode(device, {d, 3, 2, uniform(bits, options), uniform(bits, options), true});
      }
      for (const int bits : {2, 4, 8, 16}) {
        check_encode(device, {d, 3, 2, progressive(bits, options), progressive(bits, options), true});
        check_encode(device, {d, 3, 2, progressive(bits, by_token), progressive(bits, by_token), true});
      }
    }
    check_encode(device, {d, 2, 1, uniform(3), progressive(4), true});
    check_encode(device, {d, 1, 1, kHalves, uniform(2), true});
    check_encode(device, {d, 1, 1, progressive(8, {{"axis", 0.0}}), kHalves, true});
  }
}

void check_canonical(bool device) {
  for (const int d : {32, 48, 80, 128, 240, 256}) {
    check_encode(device, {d, 2, 2, kHalves, kHalves, false});
    const bool all = d < 128;
    for (const auto& options : reference::uniform::variants(reference::Side::kKeys, d)) {
      for (const int bits : {1, 2, 3, 4, 8, 16}) {
        if (!all && bits != 3 && bits != 4) continue;
        check_encode(device, {d, 1, 1, uniform(bits, options), uniform(bits, options), false});
      }
      for (const int bits : {2, 4, 8, 16}) {
        if (!all && bits != 8 && bits != 16) continue;
        check_encode(device, {d, 1, 1, progressive(bits, options), progressive(bits, options), false});
      }
    }
  }
}

HOST_CASE("encode steps: fragments of every codec, width and head dim") { check_fragments(false); }
DEVICE_CASE("encode: fragments of every codec, width and head dim") { check_fragments(true); }
HOST_CASE("encode steps: canonical pages of every codec, width, axis, group and head dim") { check_canonical(false); }
DEVICE_CASE("encode: canonical pages of every codec, width, axis, group and head dim") { check_canonical(true); }

DEVICE_CASE("encode: more pages than a launch takes") {
  check_encode(true, {64, 1, kPagesPerLaunch + 3, uniform(2), uniform(4), true});
  check_encode(true, {32, 1, kPagesPerLaunch + 3, uniform(2), uniform(4), false});
}

// Rows of all types and strides, scaled, some of them refused: pages are those of rows that stage_rows has staged.
DEVICE_CASE("encode: rows as they are appended, and the same rows staged") {
  using kvasir::ElementType;
  constexpr ElementType kTypes[][2] = {{ElementType::kFloat32, ElementType::kFloat16},
                                       {ElementType::kBFloat16, ElementType::kFloat32},
                                       {ElementType::kFloat16, ElementType::kBFloat16}};
  std::mt19937 random(11);
  for (const int d : {64, 96, 128, 256}) {
    for (const auto& types : kTypes) {
      for (const int variant : {0, 1, 2, 3}) {
        const bool heads_first = variant % 2 == 1, scaled = variant >= 2, spoiled = variant >= 1;
        const Setting setting = {d, 3, 2, progressive(variant == 3 ? 16 : 4), uniform(2), true};
        const int64_t tokens = kFirstRow + setting.pages * kvasir::kPageTokens + kRowsAfter, token_elements = 3 * d;
        std::vector<uint8_t> bytes[2];
        for (int side = 0; side < 2; ++side) {
          std::normal_distribution<float> normal;
          for (int64_t i = 0; i < tokens * token_elements; ++i) {
            float x = normal(random);
            if (spoiled && random() % 5000 == 0) x = random() % 2 ? NAN : random() % 2 ? 1e30f : -33000.0f;
            uint32_t word;
            std::memcpy(&word, &x, 4);
            if (types[side] == ElementType::kBFloat16) word >>= 16;
            if (types[side] == ElementType::kFloat16) {
              word = std::isnan(x) ? 0x7e01 : reference::half_nearest(std::fabs(x) < 40000.0f ? x : 1.0f);
            }
            const auto* from = reinterpret_cast<const uint8_t*>(&word);
            bytes[side].insert(bytes[side].end(), from, from + (types[side] == ElementType::kFloat32 ? 4 : 2));
          }
        }
        std::vector<float> factors;
        for (int64_t i = 0; i < token_elements; ++i) factors.push_back(0.5f + static_cast<float>(random() % 99) / 7.0f);
        const Buffer keys(bytes[0]), values(bytes[1]), scaling(bytes_of(factors));
        const Buffer refused(8, 0), others_refused(8, 0);
        InputRows input = {{keys.data(), values.data()}, {types[0], types[1]}, tokens, nullptr, nullptr, {}, {}};
        if (scaled) input.key_scaling = scaling.as<float>();
        for (int side = 0; heads_first && side < 2; ++side) {
          input.token_strides[side] = d;
          input.head_strides[side] = tokens * d;
        }

        SideFormat sides[2];
        make_sides(setting, sides);
        const auto page_bytes = static_cast<size_t>(kvasir::cuda::page_bytes(setting.kv_heads, sides));
        const Pages pages(setting, page_bytes), others(setting, page_bytes);
        EncodeRequest request = request_for(setting, pages);
        input.refused = refused.as<uint32_t>();
        request.input = &input;
        encode(setting, request);

        // As many tokens as the pages have, no more: others are not looked at.
        const int64_t rows = setting.pages * kvasir::kPageTokens;
        const Buffer staged(static_cast<size_t>(4 * rows * token_elements));
        request = request_for(setting, others);
        request.staging = {{staged.as<uint16_t>(), staged.as<uint16_t>() + rows * token_elements}, rows};
        request.first_row = 0;
        input.refused = others_refused.as<uint32_t>();
        CUDA(stage_rows(request.shape, input, kFirstRow, rows, request.staging, 0, nullptr));
        encode(setting, request);
        const std::string wrong = difference(pages.read(), others.read());
        CHECK(wrong.empty(), describe(setting) << " variant " << variant << ": " << wrong);
        CHECK(refused.read() == others_refused.read(), describe(setting) << " variant " << variant);
        CHECK((refused.read() != std::vector<uint8_t>(8, 0)) == spoiled, describe(setting) << " variant " << variant);
      }
    }
  }
}

DEVICE_CASE("encode: rows that cannot be read as they are") {
  const Setting setting = {128, 1, 1, uniform(2), uniform(2), true};
  const Buffer memory(1 << 20, 0), refused(8, 0);
  const Pages pages(setting, 1 << 16);
  InputRows input = {{memory.data(), memory.data()}, {}, kFirstRow + 128, nullptr, refused.as<uint32_t>(), {}, {}};
  EncodeRequest request = request_for(setting, pages);
  request.input = &input;
  const auto refuses = [&](const char* what) { CHECK(encode_pages(request, nullptr) == cudaErrorInvalidValue, what); };
  --input.tokens;
  refuses("a token less than the pages have");
  ++input.tokens;
  input.sides[1] = memory.data() + 8;
  refuses("values that are not aligned");
  input.sides[1] = memory.data();
  input.token_strides[0] = 131;
  refuses("strides that are not whole vectors");
  input.token_strides[0] = 0;
  make_sides({128, 1, 1, uniform(2), uniform(2), false}, request.sides);
  refuses("canonical pages");
  CUDA(cudaDeviceSynchronize());
}

}  // namespace
