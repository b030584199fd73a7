// Pages of tiered keys and uniform values sealed on the device, and decoded to rows there, against docs/format.md:
// every byte of a page, and every bit of a row.
#include "kernels/cuda/tiered/seal.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "check.h"
#include "codecs/tiered/format.h"
#include "codecs/uniform/format.h"
#include "kernels/cuda/tiered/rows.h"
#include "pages/page_case.h"
#include "reference/half.h"
#include "reference/tiered_page.h"
#include "reference/uniform_page.h"

namespace {

using namespace kvasir::cuda;
using page_case::Buffer;
using page_case::bytes_of;

constexpr int kHeads = 2, kPages = 2, kTail = 37;  // rows of the staging that are in no page

enum class Rows { kOutliers, kHard, kEqual, kConstant, kSparse };

struct Setting {
  int head_dim, value_bits, value_group;
  reference::Options options;
  Rows rows;
  bool equal_importance;  // few different values, so that saliencies are equal
  bool arranged = true;   // whether tiered/layout.h has these formats
  bool value_cells = value_bits == 2;

  std::string describe() const {
    std::ostringstream text;
    text << "d=" << head_dim << " values=" << value_bits << "/" << value_group << " rows=" << static_cast<int>(rows)
         << (equal_importance ? " equal" : "");
    for (const auto& option : options) text << " " << option.first << "=" << option.second;
    return text.str();
  }
  double option(const char* name, double otherwise) const {
    const auto found = options.find(name);
    return found == options.end() ? otherwise : found->second;
  }
  reference::PageShape keys() const { return reference::tiered::shape(reference::Side::kKeys, 2, head_dim, options); }
  reference::PageShape values() const {
    return {reference::Side::kValues, head_dim, value_bits, 1, value_group, value_cells};
  }
  kvasir::PageFormat key_format() const {
    kvasir::PageFormat format;
    format.head_dim = head_dim;
    format.group = keys().group;
    format.grid = keys().cells ? kvasir::Grid::kCells : kvasir::Grid::kEnds;
    format.numbers[kvasir::tiered::kMode] = static_cast<float>(option("mode", 0));
    format.numbers[kvasir::tiered::kTau16] = static_cast<float>(option("tau16", 1.44));
    format.numbers[kvasir::tiered::kTau4] = static_cast<float>(option("tau4", 0.79));
    format.numbers[kvasir::tiered::kKeyBits] = static_cast<float>(option("key_bits", 2.7));
    format.numbers[kvasir::tiered::kQueries] = static_cast<float>(option("queries", 1));
    format.numbers[kvasir::tiered::kParameterBits] = static_cast<float>(option("parameter_bits", 16));
    return format;
  }
  kvasir::PageFormat value_format() const {
    kvasir::PageFormat format;
    format.side = kvasir::Side::kValues;
    format.head_dim = head_dim;
    format.bits = value_bits;
    format.axis = kvasir::Axis::kToken;
    format.group = value_group;
    format.grid = value_cells ? kvasir::Grid::kCells : kvasir::Grid::kEnds;
    format.page_bytes = kvasir::uniform::layout_of(format).bytes;
    return format;
  }
};

std::vector<float> make_rows(const Setting& s, int tokens, unsigned seed) {
  if (s.rows == Rows::kHard) return page_case::hard_rows(tokens, s.head_dim, seed);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> rows;
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < s.head_dim; ++c) {
      const double size = c % 29 == 3 ? 9.0 : c % 7 == 1 ? 2.0 : 0.5;
      double x = size * normal(random) + std::sin(c * 1.3);
      if (s.rows == Rows::kEqual) x = (t * 7 % 32) / 4.0;                         // all channels have one range
      if (s.rows == Rows::kConstant) x = c;                                       // and here none has any
      if (s.rows == Rows::kSparse) x = c % 5 == 0 ? (t % 8) * (c % 3 + 1) : 0.0;  // few have one, and these are few
      rows.push_back(static_cast<float>(reference::half_value(reference::half_nearest(x))));
    }
  }
  return rows;
}

std::vector<uint16_t> halves_of(const std::vector<float>& rows) {
  std::vector<uint16_t> halves;
  for (const float x : rows) halves.push_back(reference::half_nearest(x));
  return halves;
}

// A layer's rows, and what they must become.
struct Expected {
  std::vector<float> rows[2];                   // by side: [kHeads][kPages * 128 + kTail][d]
  std::vector<float> importance;                // [kHeads][d]
  std::vector<std::vector<uint8_t>> pages;      // as tiered/layout.h has them
  std::vector<std::vector<uint8_t>> canonical;  // as docs/format.md has them, keys alone
  std::vector<uint32_t> offsets;                // [kPages][kHeads + 1]: of the parts of `canonical`
  std::vector<float> decoded[2];                // [kHeads][kPages * 128][d]
};

Expected expect(const Setting& s, unsigned seed) {
  Expected expected;
  const int tokens = kPages * 128 + kTail, d = s.head_dim;
  std::mt19937 random(seed);
  for (int h = 0; h < kHeads; ++h) {
    for (int side = 0; side < 2; ++side) {
      const std::vector<float> rows = make_rows(s, tokens, seed + static_cast<unsigned>(2 * h + side));
      expected.rows[side].insert(expected.rows[side].end(), rows.begin(), rows.end());
    }
    for (int c = 0; c < d; ++c) {
      expected.importance.push_back(s.equal_importance ? static_cast<float>(1 + c % 2)
                                                       : static_cast<float>(random() % 1000) / 300.0f);
    }
  }
  for (int side = 0; side < 2; ++side) expected.decoded[side].resize(static_cast<size_t>(kHeads) * kPages * 128 * d);
  for (int p = 0; p < kPages; ++p) {
    std::vector<uint8_t> page(static_cast<size_t>(tiered_table_bytes(kHeads))), canonical(64);
    for (int h = 0; h < kHeads; ++h) {
      const size_t from = (static_cast<size_t>(h) * tokens + 128 * static_cast<size_t>(p)) * d;
      const float* keys = expected.rows[0].data() + from;
      const auto tiers = reference::tiered::choose(s.keys(), keys, expected.importance.data() + h * d);
      const std::vector<uint8_t> key_part = reference::tiered::encode(s.keys(), keys, tiers);
      const std::vector<uint8_t> value_part = reference::uniform::encode(s.values(), expected.rows[1].data() + from);
      expected.offsets.push_back(static_cast<uint32_t>(canonical.size()));
      canonical.insert(canonical.end(), key_part.begin(), key_part.end());
      if (!s.arranged) continue;
      const TieredBlock layout = tiered_block(s.key_format(), s.value_format(), key_part.data());
      const TieredPlace place = {static_cast<uint32_t>(page.size()), static_cast<uint16_t>(layout.n16),
                                 static_cast<uint16_t>(layout.n4)};
      std::memcpy(page.data() + sizeof place * h, &place, sizeof place);
      page.resize(page.size() + static_cast<size_t>(layout.bytes()));
      pack_tiered(s.key_format(), s.value_format(), key_part.data(), value_part.data(), page.data() + place.offset);
      const size_t to = (static_cast<size_t>(h) * kPages + p) * 128 * d;
      const auto key_rows = reference::tiered::decode(s.keys(), key_part.data()).rows;
      const auto value_rows = reference::uniform::decode(s.values(), value_part.data()).rows;
      std::copy(key_rows.begin(), key_rows.end(), expected.decoded[0].begin() + static_cast<std::ptrdiff_t>(to));
      std::copy(value_rows.begin(), value_rows.end(), expected.decoded[1].begin() + static_cast<std::ptrdiff_t>(to));
    }
    expected.pages.push_back(page);
    expected.offsets.push_back(static_cast<uint32_t>(canonical.size()));
    std::memcpy(canonical.data(), expected.offsets.data() + p * (kHeads + 1), (kHeads + 1) * sizeof(uint32_t));
    expected.canonical.push_back(canonical);
  }
  return expected;
}

// What the device is asked to seal, and the tiers that it chose.
class Sealing {
 public:
  Sealing(const Setting& s, const Expected& expected)
      : keys_(bytes_of(halves_of(expected.rows[0]))),
        values_(bytes_of(halves_of(expected.rows[1]))),
        importance_(bytes_of(expected.importance)),
        scratch_(tier_choice_bytes({kHeads, s.head_dim}, kPages)) {
    request.shape = {kHeads, s.head_dim};
    request.keys = s.key_format();
    request.values = s.value_format();
    request.staging = {{keys_.as<uint16_t>(), values_.as<uint16_t>()}, kPages * 128 + kTail};
    request.page_count = kPages;
    request.importance = importance_.as<float>();
    choices = tier_choices(request.shape, kPages, scratch_.data());
    CUDA(choose_tiers(request, choices, nullptr));
    counts.resize(kPages * kHeads);
    CUDA(cudaMemcpy(counts.data(), choices.counts, sizeof(TierCounts) * counts.size(), cudaMemcpyDeviceToHost));
  }

  TieredSealRequest request = {};
  TierChoices choices = {};
  std::vector<TierCounts> counts;  // [kPages][kHeads]

 private:
  const Buffer keys_, values_, importance_, scratch_;
};

// Pages on the device, of the sizes expected.
struct Pages {
  explicit Pages(const std::vector<std::vector<uint8_t>>& expected) {
    for (const auto& page : expected) {
      buffers.push_back(std::make_unique<Buffer>(page.size()));
      addresses.push_back(buffers.back()->data());
    }
  }
  void check(const Setting& s, const std::vector<std::vector<uint8_t>>& expected) const {
    for (size_t p = 0; p < buffers.size(); ++p) {
      const std::string difference = page_case::difference(buffers[p]->read(), expected[p]);
      CHECK(difference.empty(), s.describe() << " page " << p << ": " << difference);
    }
  }
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<uint8_t*> addresses;
};

void check_setting(const Setting& s, unsigned seed) {
  const Expected expected = expect(s, seed);
  const Sealing sealing(s, expected);
  const TieredFormat format = tiered_format(s.key_format(), s.value_format());
  for (size_t p = 0; p < kPages; ++p) {
    size_t bytes = static_cast<size_t>(tiered_table_bytes(kHeads));
    for (size_t h = 0; h < kHeads; ++h) {
      const TierCounts tiers = sealing.counts[p * kHeads + h];
      bytes += static_cast<size_t>(tiered_block(format, tiers.n16, tiers.n4).bytes());
    }
    CHECK(bytes == expected.pages[p].size(), s.describe() << " page " << p << ": " << bytes);
    if (bytes != expected.pages[p].size()) return;
  }
  const Pages pages(expected.pages);
  CUDA(seal_tiered_pages(sealing.request, sealing.choices, pages.addresses.data(), nullptr));
  CUDA(cudaDeviceSynchronize());
  pages.check(s, expected.pages);

  const Buffer list(bytes_of(pages.addresses));
  const size_t side_bytes = expected.decoded[0].size() * sizeof(float);
  const Buffer rows[2] = {Buffer(side_bytes), Buffer(side_bytes)};
  TieredRows decoding = {};
  decoding.keys = s.key_format();
  decoding.values = s.value_format();
  decoding.kv_heads = kHeads;
  decoding.pages = list.as<const uint8_t*>();
  decoding.page_count = kPages;
  for (int side = 0; side < 2; ++side) decoding.sides[side] = rows[side].as<float>();
  CUDA(launch_tiered_rows(decoding, nullptr));
  CUDA(cudaDeviceSynchronize());
  for (int side = 0; side < 2; ++side) {
    const std::string difference = page_case::difference(rows[side].read(), bytes_of(expected.decoded[side]));
    CHECK(difference.empty(), s.describe() << " rows of side " << side << ": " << difference);
  }
}

std::vector<reference::Options> policies() {
  std::vector<reference::Options> all = reference::tiered::half_variants();
  all.push_back({{"queries", 0.0}});
  all.push_back({{"mode", 2.0}, {"key_bits", 2.7}, {"queries", 0.0}, {"group", 128.0}});
  for (const double bits : {2.0, 2.03, 3.1, 4.0, 4.05, 5.3, 16.0}) all.push_back({{"mode", 2.0}, {"key_bits", bits}});
  return all;
}

DEVICE_CASE("tiered: pages sealed on the device, byte for byte") {
  unsigned seed = 1;
  for (const int d : {64, 96, 128, 256}) {
    const int value_groups[] = {32, d % 64 == 0 ? 64 : 96, d < 128 ? d : 128};
    for (const reference::Options& options : policies()) {
      for (const Rows rows : {Rows::kOutliers, Rows::kHard}) {
        ++seed;
        Setting s = {d, seed % 2 == 0 ? 2 : 4, value_groups[seed % 3], options, rows, false};
        s.value_cells = seed / 2 % 2 == 0;
        check_setting(s, seed);
      }
    }
  }
}

DEVICE_CASE("tiered: keys of canonical pages sealed on the device, byte for byte") {
  unsigned seed = 2000;
  for (const int d : {32, 80, 128, 256}) {
    std::vector<reference::Options> all = policies();
    for (const reference::Options& options : reference::tiered::byte_variants()) all.push_back(options);
    for (const reference::Options& options : all) {
      ++seed;
      const Setting s = {d, 2, 32, options, seed % 2 == 0 ? Rows::kOutliers : Rows::kHard, false, false};
      const Expected expected = expect(s, seed);
      const Sealing sealing(s, expected);
      for (size_t i = 0; i < sealing.counts.size(); ++i) {
        uint16_t tiers[2];
        const size_t p = i / kHeads, h = i % kHeads;
        std::memcpy(tiers, expected.canonical[p].data() + expected.offsets[p * (kHeads + 1) + h], sizeof tiers);
        CHECK(sealing.counts[i].n16 == tiers[0] && sealing.counts[i].n4 == tiers[1], s.describe());
      }
      const Pages pages(expected.canonical);
      const Buffer offsets(bytes_of(expected.offsets));
      CUDA(seal_tiered_parts(sealing.request, sealing.choices, {offsets.as<uint32_t>(), kHeads, 64},
                             pages.addresses.data(), nullptr));
      CUDA(cudaDeviceSynchronize());
      pages.check(s, expected.canonical);
    }
  }
}

DEVICE_CASE("tiered: channels of equal saliency, in the host's order") {
  unsigned seed = 1000;
  for (const int d : {64, 96}) {
    for (const reference::Options& options : policies()) {
      for (const Rows rows : {Rows::kEqual, Rows::kConstant, Rows::kSparse}) {
        ++seed;
        check_setting({d, 2, 32, options, rows, true}, seed);
      }
    }
  }
}

}  // namespace
