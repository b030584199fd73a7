#include "codecs/commvq/value_codebook.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/checks.h"
#include "base/half.h"
#include "base/scratch.h"
#include "base/thread_pool.h"
#include "codecs/commvq/products.h"

namespace kvasir {
namespace {

using commvq::bit_at;

// Tokens whose slopes are in memory at once.
constexpr int64_t kBatch = 512;
// Most flips of a token, in units of its bits. Descents end long before: this is for rounding that goes in circles.
constexpr int kFlipsPerBit = 4;

void require_arrays(const float* rows, int64_t tokens, int width, const uint8_t* bits, const uint16_t* gains) {
  require_pointer("rows", rows);
  require_pointer("bits", bits);
  require_pointer("gains", gains);
  require_range("tokens", tokens, 1, std::numeric_limits<int>::max());
  require_rows(rows, tokens, width);
}

}  // namespace

void commvq::require_value_shape(int width, int codes) {
  if (width < 16 || width > 65536 || width % 16 != 0) {
    refuse("width is " + std::to_string(width) + ", not a multiple of 16 in 16..65536");
  }
  if (codes < 16 || codes > 16384 || codes % 16 != 0) {
    refuse("codes is " + std::to_string(codes) + ", not a multiple of 16 in 16..16384");
  }
}

float commvq::normalise(const float* row, int width, float* out) {
  double sum = 0.0;
  for (int c = 0; c < width; ++c) sum += static_cast<double>(row[c]) * row[c];
  // 0 as a float where the row is 0, or all but: there is nothing to divide then.
  const float root = static_cast<float>(std::sqrt(sum / width));
  const float divisor = root > 0.0f ? root : 1.0f;
  for (int c = 0; c < width; ++c) out[c] = row[c] / divisor;
  return root;
}

ValueCodebook::Impl::Impl(int width, int codes, const float* given, const float* limits, const CodebookKernels& kernels)
    : kernels(kernels), width(width), codes(codes) {
  commvq::require_value_shape(width, codes);
  require_pointer("table", given);
  table.resize(static_cast<size_t>(width) * codes);
  for (size_t i = 0; i < table.size(); ++i) {
    if (!(std::fabs(given[i]) <= 65504.0f)) {
      throw Error(ErrorCode::kNotFinite, "table: " + float_text(given[i]) + " in row " + std::to_string(i / width));
    }
    table[i] = half_to_float(float_to_half(given[i]));
  }
  thresholds.assign(static_cast<size_t>(codes), 0.5f);
  for (int n = 0; limits != nullptr && n < codes; ++n) {
    if (!(std::fabs(limits[n]) <= 65504.0f)) {
      throw Error(ErrorCode::kNotFinite, "thresholds: " + float_text(limits[n]) + " for code " + std::to_string(n));
    }
    thresholds[n] = limits[n];
  }
  gram.resize(static_cast<size_t>(codes) * codes);
  commvq::multiply(kernels, table.data(), codes, table.data(), codes, width, nullptr, gram.data());
  for (int n = 0; n < codes; ++n) diagonal.push_back(gram[static_cast<size_t>(n) * codes + n]);
}

void ValueCodebook::Impl::sum_rows(const uint8_t* bits, float* out) const {
  std::fill(out, out + width, 0.0f);
  for (int n = 0; n < codes; ++n) {
    if (!bit_at(bits, n)) continue;
    const float* from = row(n);
    for (int c = 0; c < width; ++c) out[c] += from[c];
  }
}

uint16_t ValueCodebook::Impl::gain_of(const float* row, const float* sum) const {
  double product = 0.0, square = 0.0;
  for (int c = 0; c < width; ++c) {
    product += static_cast<double>(row[c]) * sum[c];
    square += static_cast<double>(sum[c]) * sum[c];
  }
  const double gain = square > 0.0 ? product / square : 0.0;
  return float_to_half(static_cast<float>(std::min(std::max(gain, -65504.0), 65504.0)));
}

ValueCodebook::ValueCodebook() = default;
ValueCodebook::~ValueCodebook() = default;
void ValueCodebook::destroy(ValueCodebook* codebook) { delete codebook; }

ValueCodebook* ValueCodebook::share() const {
  auto* codebook = new ValueCodebook();
  codebook->impl_ = impl_;
  return codebook;
}

int ValueCodebook::width() const { return impl_->width; }
int ValueCodebook::codes() const { return impl_->codes; }

int64_t ValueCodebook::bit_bytes(int64_t tokens) const {
  require_range("tokens", tokens, 0, std::numeric_limits<int64_t>::max() >> 16);
  return tokens * static_cast<int64_t>(impl_->token_bytes());
}

void ValueCodebook::read_table(float* out) const {
  require_pointer("out", out);
  std::copy(impl_->table.begin(), impl_->table.end(), out);
}

void ValueCodebook::read_thresholds(float* out) const {
  require_pointer("out", out);
  std::copy(impl_->thresholds.begin(), impl_->thresholds.end(), out);
}

void ValueCodebook::encode(const float* rows, int64_t tokens, uint8_t* bits, uint16_t* gains) const {
  require_arrays(rows, tokens, impl_->width, bits, gains);
  impl_->find_bits(rows, tokens, true, std::numeric_limits<int>::max(), bits, gains);
}

void ValueCodebook::refine(const float* rows, int64_t tokens, int flips, uint8_t* bits, uint16_t* gains) const {
  require_arrays(rows, tokens, impl_->width, bits, gains);
  require_range("flips", flips, 0, std::numeric_limits<int>::max());
  impl_->find_bits(rows, tokens, false, flips, bits, gains);
}

void ValueCodebook::Impl::find_bits(const float* rows, int64_t tokens, bool begin, int flips, uint8_t* bits,
                                    uint16_t* gains) const {
  const int64_t batch = std::min(tokens, kBatch);
  const AlignedArray<float> rest = make_aligned<float>(static_cast<size_t>(batch) * width);
  const AlignedArray<float> slopes = make_aligned<float>(static_cast<size_t>(batch) * codes);
  for (int64_t first = 0; first < tokens; first += kBatch) {
    const int count = static_cast<int>(std::min(kBatch, tokens - first));
    const float* const batch_rows = rows + first * width;
    uint8_t* const batch_bits = bits + static_cast<size_t>(first) * token_bytes();
    if (begin) memset(batch_bits, 0, count * token_bytes());
    if (flips > 0) {
      // What the bits say already, less the row: its products with the codebook are the slopes.
      ThreadPool::current().run(count, [&](int t) {
        struct Normal;
        float* const normal = thread_scratch<Normal, float>(width);
        float* const mine = rest.get() + static_cast<size_t>(t) * width;
        commvq::normalise(batch_rows + static_cast<size_t>(t) * width, width, normal);
        sum_rows(batch_bits + t * token_bytes(), mine);
        for (int c = 0; c < width; ++c) mine[c] -= normal[c];
      });
      commvq::multiply(kernels, rest.get(), count, table.data(), codes, width, nullptr, slopes.get());
    }
    ThreadPool::current().run(count, [&](int t) {
      struct Signs;
      float* const sum = rest.get() + static_cast<size_t>(t) * width;
      uint8_t* const mine = batch_bits + t * token_bytes();
      if (flips > 0) {
        float* const slope = slopes.get() + static_cast<size_t>(t) * codes;
        float* const signs = thread_scratch<Signs, float>(codes);
        for (int n = 0; n < codes; ++n) signs[n] = bit_at(mine, n) ? -1.0f : 1.0f;
        if (begin) kernels.decide(gram.data(), diagonal.data(), thresholds.data(), codes, slope, signs);
        kernels.flip(gram.data(), diagonal.data(), codes, std::min(flips, kFlipsPerBit * codes), slope, signs);
        memset(mine, 0, token_bytes());
        for (int n = 0; n < codes; ++n) mine[n / 8] |= static_cast<uint8_t>((signs[n] < 0.0f) << (n % 8));
      }
      sum_rows(mine, sum);
      gains[first + t] = gain_of(batch_rows + static_cast<size_t>(t) * width, sum);
    });
  }
}

void ValueCodebook::decode(const uint8_t* bits, const uint16_t* gains, int64_t tokens, float* rows) const {
  require_pointer("bits", bits);
  require_pointer("gains", gains);
  require_pointer("rows", rows);
  require_range("tokens", tokens, 1, std::numeric_limits<int>::max());
  for (int64_t t = 0; t < tokens; ++t) {
    if ((gains[t] & 0x7FFFu) >= 0x7C00u) {
      throw Error(ErrorCode::kNotFinite, "the gain of token " + std::to_string(t) + " is not finite");
    }
  }
  ThreadPool::current().run(static_cast<int>(tokens), [&](int t) {
    float* const row = rows + static_cast<size_t>(t) * impl_->width;
    impl_->sum_rows(bits + t * impl_->token_bytes(), row);
    const float gain = half_to_float(gains[t]);
    for (int c = 0; c < impl_->width; ++c) row[c] *= gain;
  });
}

}  // namespace kvasir
