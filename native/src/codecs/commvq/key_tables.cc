#include "codecs/commvq/key_tables.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/checks.h"
#include "base/half.h"
#include "base/rope.h"

namespace kvasir::commvq {

void KeyShape::check() const {
  require_range("kv_heads", kv_heads, 1, 1024);
  require_head_dim(head_dim);
  require_rope_pairs(pairs);
  require_range("stages", stages, 1, 64);
  if (entries != 16 && entries != 32 && entries != 64) {
    refuse("entries is " + std::to_string(entries) + ", not 16, 32 or 64");
  }
}

Stage::Stage(int entries, int head_dim, const float* vectors)
    : entries_(entries),
      head_dim_(head_dim),
      vectors_(vectors, vectors + static_cast<size_t>(entries) * head_dim),
      columns_(static_cast<size_t>(head_dim) * 2 * entries),
      cross_(static_cast<size_t>(entries) * entries) {
  const int half = head_dim / 2;
  for (int e = 0; e < entries; ++e) {
    const float* re = vector(e);
    const float* im = re + half;
    for (int j = 0; j < half; ++j) {
      // i z = i (re + i im) = -im + i re.
      columns_[static_cast<size_t>(j) * 2 * entries + e] = -2.0f * re[j];
      columns_[static_cast<size_t>(half + j) * 2 * entries + e] = -2.0f * im[j];
      columns_[static_cast<size_t>(j) * 2 * entries + entries + e] = 2.0f * im[j];
      columns_[static_cast<size_t>(half + j) * 2 * entries + entries + e] = -2.0f * re[j];
    }
  }
  std::vector<double> squares(entries, 0.0);
  for (int e = 0; e < entries; ++e) {
    for (int c = 0; c < head_dim; ++c) squares[e] += static_cast<double>(vector(e)[c]) * vector(e)[c];
  }
  // Row by row, so that the inner loop has no sum across its own steps.
  std::vector<double> row(entries);
  for (int a = 0; a < entries; ++a) {
    for (int b = 0; b < entries; ++b) row[b] = squares[a] + squares[b];
    for (int c = 0; c < head_dim; ++c) {
      const double x = -static_cast<double>(vector(a)[c]);
      const float* column = columns_.data() + static_cast<size_t>(c) * 2 * entries + entries;
      for (int b = 0; b < entries; ++b) row[b] += x * column[b];
    }
    for (int b = 0; b < entries; ++b) cross_[static_cast<size_t>(a) * entries + b] = static_cast<float>(row[b]);
  }
}

void Stage::add(int code, float sign, float* row) const {
  const int half = head_dim_ / 2;
  const float* a = vector(code / entries_);
  const float* b = vector(code % entries_);
  for (int j = 0; j < half; ++j) {
    row[j] += sign * (a[j] - b[half + j]);
    row[half + j] += sign * (a[half + j] + b[j]);
  }
}

void Stage::find(const CodebookKernels& kernels, const float* rows, int row_stride, int count, float* products,
                 int* codes, float* scores) const {
  kernels.products(rows, count, row_stride, head_dim_, columns(), 2 * entries_, products);
  kernels.nearest(products, count, entries_, cross(), codes, scores);
}

uint16_t token_norm(const float* row, size_t width, float* divisor) {
  double sum = 0.0;
  for (size_t i = 0; i < width; ++i) sum += static_cast<double>(row[i]) * row[i];
  const uint16_t norm = float_to_half(static_cast<float>(std::sqrt(sum / static_cast<double>(width))));
  *divisor = norm == 0 ? 1.0f : half_to_float(norm);
  return norm;
}

void pack_codes(const int* codes, int bits, uint8_t* bytes) {
  uint32_t held = 0;
  int count = 0;
  for (int t = 0; t < kPageTokens; ++t) {
    held |= static_cast<uint32_t>(codes[t]) << count;
    for (count += bits; count >= 8; count -= 8, held >>= 8) *bytes++ = static_cast<uint8_t>(held);
  }
}

void unpack_codes(const uint8_t* bytes, int bits, int* codes) {
  uint32_t held = 0;
  int count = 0;
  for (int t = 0; t < kPageTokens; ++t) {
    for (; count < bits; count += 8) held |= static_cast<uint32_t>(*bytes++) << count;
    codes[t] = static_cast<int>(held & ((1u << bits) - 1));
    held >>= bits;
    count -= bits;
  }
}

}  // namespace kvasir::commvq
