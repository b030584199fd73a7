// The spectral codec: the same bytes from every backend, what they stand for by the definition in double, and attention
// on them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "codecs/spectral/format.h"
#include "codecs/spectral/formula.h"
#include "kvasir/error.h"
#include "reference/spectral_page.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/formats.h"
#include "support/guarded.h"
#include "support/spectral_cases.h"

namespace {

using kvasir::kPageTokens;
using kvasir::PageFormat;
using kvasir::Side;

constexpr int kHeads = 2;

using Case = support::SpectralCase;

Case make_case(Side side, int d, double bits, bool with_basis, const kvasir::CodecOptions& others = {}) {
  const auto vectors = support::basis_vectors(7, kHeads, d);
  return support::spectral_case(side, d, bits, kHeads,
                                with_basis ? kvasir::Basis::make(vectors.data(), kHeads, d) : nullptr, others);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (const int d : support::kHeadDims) {
      for (const double bits : {0.25, 1.0, 2.0, 2.75, 8.0}) {
        for (const bool with_basis : {false, true}) cases.push_back(make_case(side, d, bits, with_basis));
      }
    }
  }
  return cases;
}

// Channels of very different spread, as a basis makes them, some constant; a few large tokens.
std::vector<float> make_rows(int d, int seed) {
  support::Random random(static_cast<uint64_t>(seed));
  std::vector<float> rows(static_cast<size_t>(kPageTokens) * kHeads * d);
  for (int t = 0; t < kPageTokens; ++t) {
    const double large = t % 17 == 3 ? 8.0 : 1.0;
    for (int c = 0; c < kHeads * d; ++c) {
      const double spread = c % 11 == 5 ? 0.0 : std::exp2(-(c % d) * 6.0 / d);
      const double mean = c % 7 == 2 ? 3.0 : 0.0;
      rows[static_cast<size_t>(t) * kHeads * d + c] =
          kvasir::half_to_float(kvasir::float_to_half(static_cast<float>(large * (mean + spread * random.normal()))));
    }
  }
  return rows;
}

// Rows of a head by the definition: norm times the sum of coefficients times vectors.
std::vector<double> rows_of(const Case& of, const reference::SpectralHead& head, int h) {
  const int d = of.format.head_dim;
  const float* vectors = of.vectors(h);
  std::vector<double> rows(static_cast<size_t>(kPageTokens) * d, 0.0);
  for (int t = 0; t < kPageTokens; ++t) {
    for (int i = 0; i < d; ++i) {
      const double z = head.coefficients[static_cast<size_t>(t) * d + i] * head.norm[t];
      for (int c = 0; c < d; ++c) {
        rows[static_cast<size_t>(t) * d + c] +=
            vectors ? z * vectors[static_cast<size_t>(i) * d + c] : (i == c ? z : 0.0);
      }
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("spectral: every backend writes the same bytes, and as many as the format says") {
  for (const Case& of : all_cases()) {
    const int d = of.format.head_dim, tile_bits = kvasir::spectral::tile_bits(of.format);
    CHECK(of.format.page_bytes == kHeads * reference::spectral_head_bytes(d, tile_bits));
    const auto rows = make_rows(d, 3);
    const auto expected = support::spectral_page(support::scalar_backend(), of, rows);
    for (const kvasir::Backend* backend : support::available_backends()) {
      CHECK_MESSAGE(support::spectral_page(*backend, of, rows) == expected, of.text, ", ", backend->name);
    }
  }
}

TEST_CASE("spectral: widths spend the bits, in tiles of eight, on the channels that spread most") {
  for (const Case& of : all_cases()) {
    const int d = of.format.head_dim, tile_bits = kvasir::spectral::tile_bits(of.format);
    const auto page = support::spectral_page(support::scalar_backend(), of, make_rows(d, 4));
    for (int h = 0; h < kHeads; ++h) {
      const auto head = reference::read_spectral(page.data() + h * reference::spectral_head_bytes(d, tile_bits), d,
                                                 of.format.side == Side::kKeys);
      int bits = 0, counts[9] = {};
      for (const int width : head.width) {
        bits += width;
        ++counts[width];
      }
      for (const int count : counts) CHECK(count % 8 == 0);
      // A step that cannot be paid may be left.
      CHECK_MESSAGE((bits <= 8 * tile_bits && bits + 8 * 4 > 8 * tile_bits), of.text, ": ", bits);
    }
  }
}

TEST_CASE("spectral: pages decode to what the format defines") {
  for (const Case& of : all_cases()) {
    const int d = of.format.head_dim;
    const auto rows = make_rows(d, 5);
    const auto page = support::spectral_page(support::scalar_backend(), of, rows);
    for (const kvasir::Backend* backend : support::available_backends()) {
      support::Guarded<float> got(rows.size());
      support::spectral_kernels_of(*backend).decode(of.format, page.data(), got.data());
      CHECK(got.guards_intact());
      for (int h = 0; h < kHeads; ++h) {
        const auto head = reference::read_spectral(page.data() + h * of.head_bytes(), d, of.format.side == Side::kKeys);
        const auto expected = rows_of(of, head, h);
        int wrong = 0;
        for (int t = 0; t < kPageTokens; ++t) {
          double size = 0.0;
          for (int c = 0; c < d; ++c) {
            size = std::max(size, std::fabs(head.coefficients[static_cast<size_t>(t) * d + c]) * head.norm[t]);
          }
          for (int c = 0; c < d; ++c) {
            const double error =
                got.data()[(static_cast<size_t>(t) * kHeads + h) * d + c] - expected[static_cast<size_t>(t) * d + c];
            // d fused additions of products below 2.5 times the largest, and four roundings before.
            wrong += std::fabs(error) > (d + 8) * 0x1p-24 * 2.5 * size * (of.model ? d : 1);
          }
        }
        CHECK_MESSAGE(wrong == 0, of.text, ", ", backend->name, ": ", wrong);
      }
    }
  }
}

TEST_CASE("spectral: coefficients are off by half a step, but for what is clipped at the ends") {
  for (const Case& of : all_cases()) {
    if (of.model) continue;  // coefficients are then rows over norms, exactly
    const int d = of.format.head_dim;
    const auto rows = make_rows(d, 6);
    const auto page = support::spectral_page(support::scalar_backend(), of, rows);
    for (int h = 0; h < kHeads; ++h) {
      const auto head = reference::read_spectral(page.data() + h * of.head_bytes(), d, of.format.side == Side::kKeys);
      int wrong = 0;
      for (int c = 0; c < d; ++c) {
        double low = 1e30, high = -1e30;
        for (int t = 0; t < kPageTokens; ++t) {
          const double z = rows[(static_cast<size_t>(t) * kHeads + h) * d + c] / head.norm[t];
          low = std::min(low, z);
          high = std::max(high, z);
        }
        if (head.width[c] == 0) continue;
        for (int t = 0; t < kPageTokens; ++t) {
          const double z = rows[(static_cast<size_t>(t) * kHeads + h) * d + c] / head.norm[t];
          const double error = std::fabs(z - head.coefficients[static_cast<size_t>(t) * d + c]);
          const int code = head.code[static_cast<size_t>(t) * d + c];
          const bool end = code == 0 || code == (1 << head.width[c]) - 1;
          // Steps are rounded by a sixteenth of an octave, `low` by half of its unit.
          wrong += error > head.step[c] * (end ? 1.0 + 0.05 * (1 << head.width[c]) : 0.5001) + 1e-6 * (high - low);
        }
      }
      CHECK_MESSAGE(wrong == 0, of.text, ": ", wrong);
    }
  }
}

TEST_CASE("spectral: norms are within a sixteenth of an octave") {
  support::Random random(9);
  for (int i = 0; i < 10000; ++i) {
    const double rms = std::exp2(std::fmax(-15.9, std::fmin(15.9, random.normal() * 4.0)));
    const uint8_t code = kvasir::spectral::norm_code(static_cast<float>(rms * rms));
    const double off = std::fabs(std::log2(static_cast<double>(kvasir::spectral::norm_of(code)) / rms));
    REQUIRE(off <= 1.0 / 16.0 + 1e-6);
    REQUIRE(kvasir::spectral::kNorms.of[code] == kvasir::spectral::norm_of(code));
  }
  for (int code = 0; code < 256; ++code) {
    CHECK(kvasir::spectral::kSteps.of[code] == kvasir::spectral::step_value(static_cast<uint8_t>(code)));
    CHECK(std::fabs(std::log2(static_cast<double>(kvasir::spectral::kSteps.of[code])) - (code - 160) / 8.0) < 1e-6);
  }
  CHECK(kvasir::spectral::norm_code(0.0f) == 0);
}

// The multipliers of the codes are whole numbers of 15 bits, as in tile_test.cc, of which the largest stands for all:
// each is off by at most 1 / 16256 / 2 of it, times codes that count from their middle.
TEST_CASE("spectral: scores and sums are those of the decoded page") {
  for (const Case& of : all_cases()) {
    const int d = of.format.head_dim;
    const bool keys = of.format.side == Side::kKeys;
    const auto page = support::spectral_page(support::scalar_backend(), of, make_rows(d, 8));
    for (int h = 0; h < kHeads; ++h) {
      const auto head = reference::read_spectral(page.data() + h * of.head_bytes(), d, keys);
      const auto expected_rows = rows_of(of, head, h);
      for (const int count : {1, 3, 8}) {
        const int width = keys ? d : kPageTokens;
        auto input = support::float_rows(static_cast<uint64_t>(40 + count), count, width);
        if (!keys) {
          for (float& w : input) w = std::fabs(w);
        }
        for (const kvasir::Backend* backend : support::available_backends()) {
          const kvasir::CodecKernels& kernels = support::spectral_kernels_of(*backend);
          kvasir::TileInput tile = {input.data(), count, width, false};
          tile.head = h;
          support::Guarded<float> extra(static_cast<size_t>(count) * d),
              out(static_cast<size_t>(count) * (keys ? kPageTokens : d));
          std::fill_n(extra.data(), extra.size(), 0.0f);
          std::fill_n(out.data(), out.size(), keys ? 777.0f : 0.0f);
          if (keys) {
            kernels.begin_keys(of.format, {}, tile, extra.data());
            tile.terms = extra.data();
            kernels.key_scores(of.format, page.data(), tile, out.data());
          } else {
            tile.sums = extra.data();
            tile.entries = d;
            kernels.value_sum(of.format, page.data(), tile, out.data());
            kernels.end_values(of.format, {}, tile, out.data());
          }
          CHECK(extra.guards_intact());
          CHECK(out.guards_intact());
          double error = 0.0, size = 0.0;
          for (int r = 0; r < count; ++r) {
            for (int y = 0; y < (keys ? kPageTokens : d); ++y) {
              double want = 0.0;
              for (int x = 0; x < width; ++x) {
                const size_t at = keys ? static_cast<size_t>(y) * d + x : static_cast<size_t>(x) * d + y;
                want += static_cast<double>(input[static_cast<size_t>(r) * width + x]) * expected_rows[at];
              }
              const double off = out.data()[static_cast<size_t>(r) * (keys ? kPageTokens : d) + y] - want;
              error += off * off;
              size += want * want;
            }
          }
          CHECK_MESSAGE(error <= 1e-6 * size, of.text, ", ", backend->name, ", rows ", count, ": ", error / size);
        }
      }
    }
  }
}

namespace {

// What is left of a channel after some shrinks, against what it was when it was sealed: `from` and `to` by the format
// alone, in double.
bool keeps_its_cells(const reference::SpectralHead& from, const reference::SpectralHead& to, int d, int c) {
  const int dropped = from.width[c] - to.width[c];
  const double cells = std::exp2(dropped), first = from.low[c] + from.step[c] * (cells - 1) / 2;
  if (dropped < 0) return false;
  if (dropped == 0) return to.low[c] == from.low[c] && to.step[c] == from.step[c];
  if (to.width[c] == 0) {
    // The mean of what 1 bit stood for: within half a cell of that of the codes before, and half a unit.
    double mean = 0.0;
    for (int t = 0; t < kPageTokens; ++t) mean += from.coefficients[static_cast<size_t>(t) * d + c] / kPageTokens;
    const double cell = from.step[c] * std::exp2(from.width[c] - 1), exact = from.width[c] == 1 ? 0.0 : 0.5 + 0.125;
    return std::fabs(to.low[c] - mean) <= exact * cell + 0.5001 * to.step[c];
  }
  bool same = std::fabs(to.step[c] / (cells * from.step[c]) - 1) < 1e-9;
  // Each shrink rounds `low` by half a unit: an eighth of a step at 4 bits, then halved with every bit, a sixteenth
  // below.
  same = same && std::fabs(to.low[c] - first) <= 0.12501 * to.step[c];
  for (int t = 0; t < kPageTokens; ++t) {
    const size_t at = static_cast<size_t>(t) * d + c;
    same = same && to.code[at] == from.code[at] >> dropped;
  }
  return same;
}

}  // namespace

TEST_CASE("spectral: pages give up bits in place, down to the floor, and keep the codes of wider cells") {
  const int codec = kvasir::codec_index("spectral");
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (const int d : {32, 64, 96, 128, 256}) {
      const Case of = make_case(side, d, 3.5, true, {{"floor_bits", 0.5}});
      const bool keys = side == Side::kKeys;
      const auto sealed = support::spectral_page(support::scalar_backend(), of, make_rows(d, 11));
      std::vector<reference::SpectralHead> first;
      for (int h = 0; h < kHeads; ++h) {
        first.push_back(reference::read_spectral(sealed.data() + h * of.head_bytes(), d, keys));
      }
      std::vector<uint8_t> before = sealed;
      PageFormat from = of.format, to;
      int steps = 0;
      for (; kvasir::codec_at(codec).narrower(from, to); from = to, ++steps) {
        REQUIRE(to.page_bytes < from.page_bytes);
        REQUIRE(to.width() < from.width());
        std::vector<uint8_t> expected;
        for (const kvasir::Backend* backend : support::available_backends()) {
          support::Guarded<uint8_t> page(from.page_bytes);
          std::copy(before.begin(), before.end(), page.data());
          support::spectral_kernels_of(*backend).shrink(from, to, page.data(), page.data());
          CHECK(page.guards_intact());
          const std::vector<uint8_t> got(page.data(), page.data() + to.page_bytes);
          if (expected.empty()) expected = got;
          CHECK_MESSAGE(got == expected, of.text, ", ", backend->name);
        }
        CHECK(kvasir::codec_at(codec).valid(to, {}, expected.data(), expected.size()));
        for (int h = 0; h < kHeads; ++h) {
          const auto head = reference::read_spectral(expected.data() + h * to.page_bytes / kHeads, d, keys);
          int bits = 0, wrong = 0;
          for (int c = 0; c < d; ++c) {
            bits += head.width[c];
            wrong += !keeps_its_cells(first[h], head, d, c);
          }
          CHECK_MESSAGE(wrong == 0, of.text, " after ", steps + 1, " steps: ", wrong);
          CHECK(bits <= 8 * kvasir::spectral::tile_bits(to));
          CHECK(bits + 8 * 4 > 8 * kvasir::spectral::tile_bits(to));  // an 8-bit tile gives up four at once
          CHECK(head.norm == first[h].norm);
        }
        before = expected;
      }
      CHECK(kvasir::spectral::tile_bits(from) == d / 16);
      CHECK(steps == (d == 96 ? 36 : 3 * std::min(8, d / 8)));
    }
  }
}

TEST_CASE("spectral: floors that make no sense are refused") {
  const int codec = kvasir::codec_index("spectral");
  for (const double floor : {0.0, -1.0, 2.5, std::nan("")}) {
    CHECK_THROWS_AS(kvasir::configure_codec(codec, Side::kKeys, 2, 64, {{"code_bits", 2.0}, {"floor_bits", floor}}),
                    kvasir::Error);
  }
  PageFormat next;
  CHECK_FALSE(kvasir::codec_at(codec).narrower(make_case(Side::kKeys, 64, 2.0, false).format, next));
}

TEST_CASE("spectral: bases that do not span the space are refused") {
  std::vector<float> vectors(32 * 32, 0.0f);
  CHECK_THROWS_AS(kvasir::Basis::make(vectors.data(), 1, 32), kvasir::Error);
  for (int i = 0; i < 32; ++i) vectors[i * 33] = 1.0f;
  CHECK(kvasir::Basis::make(vectors.data(), 1, 32) != nullptr);
  vectors[0] = 1e-6f;
  CHECK_THROWS_AS(kvasir::Basis::make(vectors.data(), 1, 32), kvasir::Error);
  vectors[0] = INFINITY;
  CHECK_THROWS_AS(kvasir::Basis::make(vectors.data(), 1, 32), kvasir::Error);
}
