// The progressive codec: shrinking a page gives the page that the narrower width would have had from the start.
#include <cstring>
#include <vector>

#include "codecs/progressive/formula.h"
#include "kvasir/error.h"
#include "reference/progressive_page.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"
#include "support/guarded.h"

namespace progressive = kvasir::progressive;
using kvasir::PageFormat;
using kvasir::Side;

namespace {

constexpr int kWidths[] = {16, 8, 4, 2};

int progressive_codec() { return kvasir::codec_index("progressive"); }

// The kernel's page of the next width, made at `distance` bytes before the wide one, in the same memory.
std::vector<uint8_t> shrunk(const kvasir::Backend& backend, const PageFormat& from, const std::vector<uint8_t>& page,
                            size_t distance) {
  PageFormat to;
  REQUIRE(kvasir::codec_at(progressive_codec()).narrower(from, to));
  support::Guarded<uint8_t> memory(distance + page.size());
  std::memcpy(memory.data() + distance, page.data(), page.size());
  backend.codecs[progressive_codec()]->shrink(from, to, memory.data() + distance, memory.data());
  CHECK_MESSAGE(memory.guards_intact(), backend.name);
  return {memory.data(), memory.data() + to.page_bytes};
}

}  // namespace

TEST_CASE("progressive: the shift of every code is what quantising at the narrower width gives") {
  for (const int bits : {8, 4, 2}) {
    const int64_t levels = (1 << bits) - 1;
    for (int64_t code = 0; code < (1 << 2 * bits); ++code) {
      const int64_t direct = reference::progressive::rounded_quotient(code * levels, (1 << 2 * bits) - 1);
      if (progressive::narrow(static_cast<uint32_t>(code), bits) != direct) FAIL(bits, " bits, code ", code);
    }
  }
  for (int64_t code = 0; code < 65536; ++code) {
    for (const int bits : {8, 4, 2}) {
      const int64_t direct = reference::progressive::rounded_quotient(code * ((1 << bits) - 1), 65535);
      if (progressive::narrow_to(static_cast<uint32_t>(code), bits, progressive::Shift::kEquivalent) != direct)
        FAIL(bits, " bits, code ", code);
    }
  }
}

namespace {

// The code of half as many bits that an element with this code has.
int64_t narrowed(int code, int bits, bool cells) {
  if (cells) return code / (1 << bits / 2);
  return reference::progressive::rounded_quotient(int64_t{code} * ((1 << bits / 2) - 1), (1 << bits) - 1);
}

void check_every_code(const reference::Options& options) {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (const int bits : {16, 8, 4}) {
      const support::Format wide = support::make_format(progressive_codec(), side, bits, 256, options);
      const support::Format small = support::make_format(progressive_codec(), side, bits / 2, 256, options);
      for (int first = 0; first < (1 << bits); first += reference::kTokens * 256) {
        const auto code_at = [&](int t, int c) { return (first + t * 256 + c) & ((1 << bits) - 1); };
        std::vector<uint8_t> page(wide.page.page_bytes, 0);
        for (int t = 0; t < reference::kTokens; ++t) {
          for (int c = 0; c < 256; ++c) reference::uniform::store_code(wide.shape, page.data(), t, c, code_at(t, c));
        }
        for (const kvasir::Backend* backend : support::available_backends()) {
          if (!backend->codecs[progressive_codec()]->shrink) continue;
          const auto out = shrunk(*backend, wide.page, page, 0);
          for (int t = 0; t < reference::kTokens; ++t) {
            for (int c = 0; c < 256; ++c) {
              const int64_t expected = narrowed(code_at(t, c), bits, wide.shape.cells);
              const int got = reference::uniform::load_code(small.shape, out.data(), t, c);
              if (got != expected) FAIL(backend->name, ", ", wide.text, ", code ", code_at(t, c), ": ", got);
            }
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("progressive: every code of every width, through every backend's kernel") {
  check_every_code({});
  check_every_code({{"grid", 0.0}});
  check_every_code({{"grid", 0.0}, {"axis", 1.0}});
}

TEST_CASE("progressive: a shrunk page has the bytes of one that was sealed at the narrower width, down the chain") {
  support::Sampler sampler;
  for (const int head_dim : support::kHeadDims) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const auto& reference = reference::reference_codec("progressive");
      for (const auto& options : reference.variants(static_cast<reference::Side>(side), head_dim)) {
        for (const support::Profile profile : support::kProfiles) {
          if (sampler.skip()) continue;
          const auto& rows = support::half_rows(profile, 31, reference::kTokens, head_dim);
          for (const kvasir::Backend* backend : support::available_backends()) {
            if (!backend->codecs[progressive_codec()]->shrink) continue;
            std::vector<uint8_t> page;
            PageFormat before;
            for (const int bits : kWidths) {
              const support::Format format = support::make_format(progressive_codec(), side, bits, head_dim, options);
              const auto sealed = format.reference->encode(format.shape, rows.data());
              const size_t distance = 64 * static_cast<size_t>(bits % 7);  // in place, and overlapping
              page = bits == 16 ? sealed : shrunk(*backend, before, page, distance);
              CHECK_MESSAGE(page == sealed, backend->name, ", ", format.text, ", ", support::name_of(profile));
              before = format.page;
            }
          }
        }
      }
    }
  }
}

TEST_CASE("progressive: the shifts that are there to be compared with") {
  // Direct: the upper half of a code, same parameters. Modified: the same code, which now stands for the mean of the
  // codes that share it, up to the rounding of lo and range to float16.
  const auto& rows = support::half_rows(support::Profile::kNormal, 5, reference::kTokens, 64);
  for (const double shift : {1.0, 2.0}) {
    for (const int bits : {16, 8, 4}) {
      const reference::Options options = {{"grid", 0.0}, {"shift", shift}};
      const auto wide = support::make_format(progressive_codec(), Side::kValues, bits, 64, options);
      const auto small = support::make_format(progressive_codec(), Side::kValues, bits / 2, 64, options);
      const auto page = wide.reference->encode(wide.shape, rows.data());
      const auto before = reference::uniform::decode(wide.shape, page.data());
      for (const kvasir::Backend* backend : support::available_backends()) {
        if (!backend->codecs[progressive_codec()]->shrink) continue;
        const auto out = shrunk(*backend, wide.page, page, 0);
        const auto after = reference::uniform::decode(small.shape, out.data());
        for (int t = 0; t < reference::kTokens; ++t) {
          for (int c = 0; c < 64; ++c) {
            const int code = reference::uniform::load_code(wide.shape, page.data(), t, c);
            CHECK(reference::uniform::load_code(small.shape, out.data(), t, c) == code >> bits / 2);
            if (shift == 1.0) continue;
            const size_t i = static_cast<size_t>(t) * 64 + c;
            const double first = (code >> bits / 2) << bits / 2;
            const double mean = before.lo[i] + before.step[i] * (first + 0.5 * ((1 << bits / 2) - 1));
            // lo and range are of the size of the group's largest element, and each is off by half a float16 step.
            const double size = std::abs(before.lo[i]) + before.step[i] * before.levels;
            CHECK(std::abs(after.rows[i] - mean) <= size * 0x1p-11 * 2);
          }
        }
      }
    }
  }
}

TEST_CASE("progressive: formats go down to their floor, and floors that make no sense are refused") {
  const auto& codec = kvasir::codec_at(progressive_codec());
  for (const int floor : kWidths) {
    PageFormat format =
        kvasir::configure_codec(progressive_codec(), Side::kKeys, 16, 128, {{"floor", static_cast<double>(floor)}});
    PageFormat next;
    while (codec.narrower(format, next)) {
      CHECK(next.bits == format.bits / 2);
      CHECK(next.page_bytes < format.page_bytes);
      CHECK(next.page_bytes ==
            kvasir::configure_codec(progressive_codec(), Side::kKeys, next.bits, 128, {{"floor", 2.0}}).page_bytes);
      format = next;
    }
    CHECK(format.bits == floor);
  }
  for (const double floor : {0.0, 1.0, 3.0, 2.5, 8.0, 32.0, -2.0}) {
    CHECK_THROWS_AS(kvasir::configure_codec(progressive_codec(), Side::kKeys, 4, 128, {{"floor", floor}}),
                    kvasir::Error);
  }
  for (const kvasir::CodecOptions& options :
       {kvasir::CodecOptions{{"grid", 0.0}, {"shift", 3.0}}, {{"shift", 1.0}}, {{"grid", 2.0}}, {{"grid", 0.5}}}) {
    CHECK_THROWS_AS(kvasir::configure_codec(progressive_codec(), Side::kKeys, 16, 128, options), kvasir::Error);
  }
}
