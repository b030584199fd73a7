// decode: bit for bit what docs/format.md says, on every backend, for encoded pages and for arbitrary bytes.
#include <cmath>
#include <cstring>

#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"
#include "support/guarded.h"

namespace {

// Random bytes, which reach codes and parameters that no encoder would combine; but no 16-bit field has exponent 31, so
// that parameters are finite.
std::vector<uint8_t> arbitrary_page(const support::Format& format, uint64_t seed) {
  support::Random random(seed);
  // Where parts vary in size, one that some rows would have; its counts and channels are kept.
  const auto& rows = support::half_rows(support::Profile::kOutliers, 12, reference::kTokens, format.page.head_dim);
  std::vector<uint8_t> page = format.reference->encode(format.shape, rows.data());
  const std::vector<uint8_t> kept(page.begin(), page.begin() + (format.page.varies() ? 4 + format.page.head_dim : 0));
  for (uint8_t& byte : page) byte = static_cast<uint8_t>(random.next());
  for (size_t i = 1; i < page.size(); i += 2) {
    if ((page[i] & 0x7c) == 0x7c) page[i] = static_cast<uint8_t>(page[i] & ~0x40);
  }
  std::copy(kept.begin(), kept.end(), page.begin());
  return page;
}

void check_decode(const support::Format& format, const std::vector<uint8_t>& bytes, const char* what) {
  const reference::PageContent expected = format.reference->decode(format.shape, bytes.data());
  support::Guarded<uint8_t> page(bytes.size());
  page.fill(bytes.data());
  for (const kvasir::Backend* backend : support::available_backends()) {
    const kvasir::CodecKernels* kernels = backend->codecs[format.codec];
    if (kernels == nullptr || kernels->decode == nullptr) continue;
    support::Guarded<float> rows(expected.rows.size());
    kernels->decode(format.page, page.data(), rows.data());
    int wrong = 0;
    // Equal values; a zero may come with either sign.
    for (size_t i = 0; i < expected.rows.size(); ++i) wrong += !(rows[i] == expected.rows[i]);
    CHECK_MESSAGE(wrong == 0, backend->name, ", ", format.text, ", ", what, ": ", wrong, " elements differ");
    CHECK_MESSAGE(rows.guards_intact(), backend->name, ", ", format.text, ": wrote outside the rows");
  }
}

// By how much more than half a step and rounding in float32 an element may be off. Codes of PM-KVQ's plainer shifts are
// the upper bits C >> (16 - b) of codes of 16 bits, which are half a step of theirs off. With 1 a code c stands for c
// steps of range / (2^b - 1) from lo on, where C / 2^(16 - b) is up to one less of these steps, and c up to one less
// than that is: a step in either direction. With 2 it stands for the mean of what it replaces, as elsewhere, and every
// halving rounds lo and range to float16. Parameters of 8 bits end at a range of 61440: elements beyond have the last
// code.
double slack(const support::Format& format, double x, double lo, double range, double step) {
  const auto parameters = format.shape.options.find("parameter_bits");
  if (parameters != format.shape.options.end() && parameters->second == 8 && range >= 61440) {
    return std::max(0.0, x - lo - 61440);
  }
  const auto shift = format.shape.options.find("shift");
  if (shift == format.shape.options.end() || format.shape.cells || format.shape.bits == 16 || range == 0) return 0;
  if (shift->second == 1) return step / 2 + range / 65535 / 2;
  double off = 0;
  for (int bits = 8; bits >= format.shape.bits; bits /= 2)
    off += 0x1p-11 * 1.01 * (std::fabs(lo) + 2 * range) + 0x1p-24;
  return off;
}

}  // namespace

TEST_CASE("decode: encoded pages of every format") {
  support::Sampler sampler;
  for (const int head_dim : support::kHeadDims) {
    for (const support::Format& format : support::all_formats(head_dim)) {
      if (sampler.skip()) continue;
      const auto& rows = support::half_rows(support::Profile::kOutliers, 11, reference::kTokens, head_dim);
      check_decode(format, format.reference->encode(format.shape, rows.data()), "encoded");
    }
  }
}

TEST_CASE("decode: arbitrary bytes of every format") {
  support::Sampler sampler;
  for (const int head_dim : support::kHeadDims) {
    for (const support::Format& format : support::all_formats(head_dim)) {
      if (sampler.skip()) continue;
      check_decode(format, arbitrary_page(format, 13), "arbitrary bytes");
    }
  }
}

TEST_CASE("decode: |x - x'| <= step/2 plus float32 rounding, constants exact") {
  // With u = 2^-24: x - lo, levels / range and their product are rounded once each, so the scaled value is off by a
  // factor within (1 + u)^3, at most 3.01u * levels codes, 3.01u * range. Rounding to a code adds step / 2. Decoding
  // rounds range / levels and the product (2.01u * range) and the sum (u * |x'| <= u * (|lo| + 1.01 * range)). With
  // cells the product that is rounded is with levels + 1, an element is at most step / 2 from the middle of its cell,
  // and what code 0 stands for is rounded too (u * (|lo| + range / 2)).
  const double u = 0x1p-24;
  support::Sampler sampler;
  for (const int head_dim : {48, 128}) {
    for (const support::Format& format : support::all_formats(head_dim)) {
      for (const support::Profile profile : support::kProfiles) {
        if (sampler.skip()) continue;
        const auto& rows = support::half_rows(profile, 17, reference::kTokens, head_dim);
        const kvasir::CodecKernels& kernels = *support::scalar_backend().codecs[format.codec];
        const std::vector<uint8_t> part = support::begin_part(format, kernels, rows.data());
        support::Guarded<uint8_t> page(part.size());
        page.fill(part.data());
        kernels.encode(format.page, rows.data(), page.data());
        const reference::PageContent content = format.reference->decode(format.shape, page.data());
        int wrong = 0;
        for (size_t i = 0; i < rows.size(); ++i) {
          const double range = static_cast<double>(content.step[i]) * (content.levels + 1) * (1 + u);
          const double step = static_cast<double>(content.step[i]) * (1 + u);
          const double bound = step / 2 + (range > 0 ? u * (6.6 * range + 2 * std::fabs(content.lo[i])) : 0.0) +
                               slack(format, rows[i], content.lo[i], range, step);
          wrong += std::fabs(static_cast<double>(rows[i]) - content.rows[i]) > bound;
        }
        CHECK_MESSAGE(wrong == 0, format.text, ", ", support::name_of(profile), ": ", wrong, " elements off");
      }
    }
  }
}
