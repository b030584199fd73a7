// Products of weights in bfloat16 with activations as pairs of bfloat16, where a level has them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernels.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/formats.h"
#include "support/guarded.h"

namespace {

std::vector<const kvasir::Backend*> pair_backends() {
  std::vector<const kvasir::Backend*> found;
  for (const kvasir::Backend* backend : support::available_backends()) {
    if (backend->matrix->pair_product) found.push_back(backend);
  }
  return found;
}

double bfloat_at(const uint16_t* from) {
  const uint32_t bits = uint32_t{*from} << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

std::vector<uint16_t> bfloats(uint64_t seed, int count) {
  std::vector<uint16_t> out;
  for (const float x : support::float_rows(seed, 1, count)) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    out.push_back(static_cast<uint16_t>(bits >> 16));
  }
  return out;
}

struct Pairs {
  std::vector<uint16_t> memory;
  uint16_t* begin;

  // Rows that are not there are no numbers: none may be seen.
  Pairs(const kvasir::Backend& backend, const std::vector<float>& in, int rows, int depth) {
    const int tiles = (rows + kvasir::kPairRows - 1) / kvasir::kPairRows;
    memory.assign(kvasir::pair_offset(int64_t{tiles} * kvasir::kPairRows, depth) + 32, 0x7fc0);
    begin = reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
    for (int r = 0; r < rows; ++r) {
      backend.matrix->split(in.data() + r * depth, depth, begin + kvasir::pair_offset(r, depth));
    }
  }

  double at(int row, int i, int depth) const {
    const uint16_t* high = begin + kvasir::pair_offset(row, depth) +
                           int64_t{i / kvasir::kPairDepth} * 2 * kvasir::kPairRows * kvasir::kPairDepth +
                           i % kvasir::kPairDepth;
    return bfloat_at(high) + bfloat_at(high + kvasir::kPairRows * kvasir::kPairDepth);
  }
};

}  // namespace

TEST_CASE("pairs of bfloat16 are off by 2^-16, finite where numbers are, and 0 beyond the depth") {
  for (const kvasir::Backend* backend : pair_backends()) {
    INFO(backend->name);
    for (const int depth : {1, 15, 16, 17, 31, 32, 33, 100}) {
      const int rows = 18;
      auto in = support::float_rows(depth, rows, depth, 1000.0);
      in[0] = std::numeric_limits<float>::max();
      const Pairs pairs(*backend, in, rows, depth);
      int wrong = 0;
      for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < depth; ++i) {
          const double x = in[r * depth + i];
          wrong += !(std::fabs(pairs.at(r, i, depth) - x) <= (r + i ? 0x1p-16 : 0x1p-15) * std::fabs(x));
        }
        for (int i = depth; i % kvasir::kPairDepth != 0; ++i) wrong += pairs.at(r, i, depth) != 0;
      }
      CHECK(wrong == 0);
    }
    const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> special = {infinity, -infinity, nan, 0.0f};
    const Pairs pairs(*backend, special, 1, 4);
    CHECK(pairs.at(0, 0, 4) == infinity);
    CHECK(pairs.at(0, 1, 4) == -infinity);
    CHECK(std::isnan(pairs.at(0, 2, 4)));
    CHECK(pairs.at(0, 3, 4) == 0);
  }
}

// The bound counts roundings: a chain of 32 at most in a tile, then two additions for each step, and the bias.
TEST_CASE("products of pairs are sums in float32 of what the pairs are, for all remainders") {
  for (const kvasir::Backend* backend : pair_backends()) {
    for (const int depth : {1, 32, 45, 384, 1000}) {
      for (const int columns : {1, 16, 17, 32, 70}) {
        for (const int rows : {1, 15, 16, 17, 33, 50}) {
          INFO(backend->name << ": " << rows << " x " << columns << " x " << depth);
          const auto in = support::float_rows(rows, rows, depth);
          const auto weights = bfloats(columns, columns * depth);
          const auto bias = support::float_rows(9, 1, columns);
          const Pairs pairs(*backend, in, rows, depth);
          const int stride = columns + 2;
          support::Guarded<float> out(static_cast<size_t>(rows) * stride);
          std::fill_n(out.data(), out.size(), 9.0f);
          kvasir::MatrixBlock block = {};
          block.rows = rows, block.columns = columns, block.depth = depth;
          block.b = reinterpret_cast<const uint8_t*>(weights.data());
          block.type = kvasir::WeightType::kBF16, block.row_bytes = 2 * depth;
          block.bias = columns % 2 ? bias.data() : nullptr;
          block.out = out.data(), block.stride = stride, block.pairs = pairs.begin;
          backend->matrix->pair_product(block);
          int wrong = 0, touched = 0;
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < columns; ++c) {
              double sum = block.bias ? bias[c] : 0, magnitude = std::fabs(sum);
              for (int i = 0; i < depth; ++i) {
                const double term = pairs.at(r, i, depth) * bfloat_at(&weights[c * depth + i]);
                sum += term, magnitude += std::fabs(term) * (1 + 0x1p-6);
              }
              const double steps = static_cast<double>(kvasir::pair_steps(depth));
              wrong += !(std::fabs(out[r * stride + c] - sum) <= (35 + 2 * steps) * 0x1p-24 * magnitude);
            }
            for (int c = columns; c < stride; ++c) touched += out[r * stride + c] != 9.0f;
          }
          CHECK(wrong == 0);
          CHECK(touched == 0);
          CHECK(out.guards_intact());
        }
      }
    }
  }
}
