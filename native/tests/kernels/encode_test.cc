// encode: on every backend the bytes that docs/format.md prescribes, hence the same bytes on all.
#include <cmath>
#include <cstring>

#include "reference/uniform_page.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"
#include "support/guarded.h"

namespace {

// Position of the first difference, or -1.
long first_difference(const uint8_t* a, const uint8_t* b, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (a[i] != b[i]) return static_cast<long>(i);
  }
  return -1;
}

void check_encode(const support::Format& format, const std::vector<float>& rows, const char* what) {
  const std::vector<uint8_t> expected = format.reference->encode(format.shape, rows.data());
  if (!format.page.varies()) REQUIRE_MESSAGE(format.page.page_bytes == expected.size(), format.text);
  for (const kvasir::Backend* backend : support::available_backends()) {
    const kvasir::CodecKernels* kernels = backend->codecs[format.codec];
    if (kernels == nullptr || kernels->encode == nullptr) continue;
    support::Guarded<uint8_t> page(expected.size());
    support::Guarded<float> input(rows.size());
    input.fill(rows.data());
    if (format.page.varies()) {
      const std::vector<uint8_t> part = support::begin_part(format, *kernels, input.data());
      REQUIRE_MESSAGE(part.size() == expected.size(), backend->name, ", ", format.text, ", ", what);
      std::memcpy(page.data(), part.data(), format.page.head_bytes);
    }
    kernels->encode(format.page, input.data(), page.data());
    const size_t written = expected.size() - format.reference->label_bytes;  // labels are no matter of the verb
    const long difference = first_difference(page.data(), expected.data(), written);
    CHECK_MESSAGE(difference == -1, backend->name, ", ", format.text, ", ", what, ": byte ", difference);
    CHECK_MESSAGE(page.guards_intact(), backend->name, ", ", format.text, ": wrote outside the page");
    CHECK(std::memcmp(input.data(), rows.data(), rows.size() * sizeof(float)) == 0);
  }
}

}  // namespace

TEST_CASE("encode: every format, every kind of data") {
  support::Sampler sampler;
  for (const int head_dim : support::kHeadDims) {
    for (const support::Format& format : support::all_formats(head_dim)) {
      for (const support::Profile profile : support::kProfiles) {
        // Two head dims take two kinds of data only.
        const bool usual = profile == support::Profile::kNormal || profile == support::Profile::kMixedMagnitude;
        if ((head_dim == 64 || head_dim == 256) && !usual) continue;
        if (sampler.skip()) continue;
        check_encode(format, support::half_rows(profile, 7 + head_dim, reference::kTokens, head_dim),
                     support::name_of(profile));
      }
    }
  }
}

TEST_CASE("encode: residuals, which are no float16 values") {
  support::Sampler sampler;
  for (const int head_dim : {48, 128}) {
    for (const support::Format& format : support::all_formats(head_dim)) {
      if (format.reference->label_bytes == 0) continue;
      for (const support::Profile profile : support::kProfiles) {
        if (sampler.skip()) continue;
        std::vector<float> rows = support::half_rows(profile, 19, reference::kTokens, head_dim);
        const auto& less = support::half_rows(support::Profile::kMixedMagnitude, 20, reference::kTokens, head_dim);
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = 0.4f * rows[i] - 0.01f * less[i];
        check_encode(format, rows, support::name_of(profile));
      }
    }
  }
}

TEST_CASE("encode: codes at exact halves round to even") {
  // One channel runs over lo + (k + 1/2) * step for a step that is a power of two: (x - lo) * (levels / range) is
  // exactly k + 1/2 where levels / range is exact too, that is for range = levels * 2^j.
  for (const support::Format& format : support::all_formats(32)) {
    if (format.shape.bits > 8) continue;  // 65535 * 2^j has too many digits for float16
    const double levels = (1 << format.shape.bits) - 1;
    std::vector<float> rows(reference::kTokens * 32);
    for (int t = 0; t < reference::kTokens; ++t) {
      for (int c = 0; c < 32; ++c) {
        const int i = format.shape.axis == 0 ? t : c;
        const double x = i % 32 == 0 ? 0.0 : i % 32 == 1 ? levels : std::min(levels, (i % 32) - 1.5);
        rows[t * 32 + c] = support::round_to_half(x);
      }
    }
    check_encode(format, rows, "halves");
  }
}

TEST_CASE("encode: an element on the border of two cells belongs to the upper one, and the greatest to the last") {
  // Whole numbers from 0 to 2^n, whose range is 2^n: quotients are exact, and every one is the border of a cell.
  for (const support::Format& format : support::all_formats(32)) {
    if (!format.shape.cells || format.shape.bits > 8 || format.page.varies()) continue;
    const int cells = 1 << format.shape.bits;
    std::vector<float> rows(reference::kTokens * 32);
    const auto element = [&](int t, int c) {
      const int i = format.shape.axis == 0 ? t : c;
      return i % 32 == 0 ? 0 : i % 32 == 1 ? cells : (7 * t + 3 * c) % (cells + 1);
    };
    for (int t = 0; t < reference::kTokens; ++t) {
      for (int c = 0; c < 32; ++c) rows[t * 32 + c] = static_cast<float>(element(t, c));
    }
    check_encode(format, rows, "borders");
    const std::vector<uint8_t> page = format.reference->encode(format.shape, rows.data());
    for (int t = 0; t < reference::kTokens; ++t) {
      for (int c = 0; c < 32; ++c) {
        const int code = reference::uniform::load_code(format.shape, page.data(), t, c);
        if (code != std::min(element(t, c), cells - 1)) FAIL(format.text, ": ", element(t, c), " has code ", code);
      }
    }
  }
}

TEST_CASE("encode: zeros of either sign give the same page") {
  // A minimum of -0 and of +0 are one number; which of them a vector minimum returns depends on the order.
  for (const support::Format& format : support::all_formats(48)) {
    if (format.shape.group == 0) continue;  // the f16 codec keeps the sign
    support::Random random(3);
    std::vector<float> rows(reference::kTokens * 48);
    for (float& x : rows) x = random.chance(0.4) ? -0.0f : random.chance(0.5) ? 0.0f : 1.0f;
    check_encode(format, rows, "signed zeros");
  }
}
