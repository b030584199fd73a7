// key_scores and value_sum of every codec on every backend, against sums in double over the decoded page.
//
// The bound. Let x be the contracted index (X of them), w the input (a query or softmax weights), and
// element(x, y) = lo + code * step with 0 <= code <= levels. A kernel may turn the multipliers of the codes into
// integers of +-N: N >= 16256 in exact mode (15 bits, of which a split into two bytes may lose the top 1/128), N >= 127
// in fast mode. Rounding moves each multiplier by at most half a unit, that is by max/(2N):
//   parameters indexed by x ("folded"): the multiplier is w * step, so the result moves by at most
//     X * levels * max over x and groups of |w * step| / (2N)
//   parameters indexed by y: the multiplier is w, and the result moves by at most
//     sum over x of levels * step * max|w| / (2N)
// Float32 sums of X terms, in any order, fused or not, add (X + 16) * 2^-24 * sum of |w| * (|lo| + levels * step),
// where 16 covers the few operations before and after the sum. Codecs without codes (levels 0) have the float32 term
// alone.
// A codec with a side table adds to each token the vector m that its label names. For keys the product with the query
// is one more float32 sum of X terms. For values the weights of a vector's tokens are added up, 128 at most, and the
// sums multiply the vectors, one after the other: with V vectors (X + V + 16) * 2^-24 * sum of |w| * |m|.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"
#include "support/guarded.h"
#include "support/side_tables.h"

namespace {

using kvasir::kMaxTileRows;
using kvasir::kPageTokens;

constexpr double kUnits[2] = {16256.0, 127.0};  // exact, fast

// One page, kMaxTileRows input rows, and what the verb must make of them.
struct Tile {
  int x_size, y_size, stride;
  std::vector<float> input;      // [rows][stride]
  std::vector<double> expected;  // [rows][y_size]
  std::vector<double> integer;   // the bound's first part, times N
  std::vector<double> rounding;  // and its second
};

// Rows as they occur: queries are normal, weights are softmax weights. Some are awkward: zero, one element, large,
// small.
std::vector<float> input_rows(bool weights, int width, int stride) {
  std::vector<float> rows(static_cast<size_t>(kMaxTileRows) * stride, 1e30f);  // between rows: what must not be read
  support::Random random(91);
  for (int r = 0; r < kMaxTileRows; ++r) {
    float* row = rows.data() + r * stride;
    for (int x = 0; x < width; ++x) {
      const double n = random.normal();
      row[x] = static_cast<float>(weights ? std::min(1.0, std::exp(2.0 * n - 4.0)) : n);
      if (r == 1 || (r == 2 && x != width - 1)) row[x] = 0.0f;
      if (r == 3 && !weights) row[x] *= 1000.0f;
      if (r == 4) row[x] *= 1e-20f;
    }
  }
  return rows;
}

// table: null for codecs without one.
Tile make_tile(const support::Format& format, const uint8_t* page, const support::Table* table) {
  const reference::PageContent content = format.reference->decode(format.shape, page);
  const uint8_t* labels = page + format.page.page_bytes - reference::kTokens;
  const bool keys = format.shape.side == reference::Side::kKeys;
  const bool folded = keys == (format.shape.axis == 0);
  const int d = format.shape.head_dim;
  Tile tile;
  tile.x_size = keys ? d : kPageTokens;
  tile.y_size = keys ? kPageTokens : d;
  tile.stride = tile.x_size + 16;
  tile.input = input_rows(!keys, tile.x_size, tile.stride);
  const size_t results = static_cast<size_t>(kMaxTileRows) * tile.y_size;
  tile.expected.assign(results, 0.0);
  tile.integer.assign(results, 0.0);
  tile.rounding.assign(results, 1e-37);
  for (int r = 0; r < kMaxTileRows; ++r) {
    const float* w = tile.input.data() + r * tile.stride;
    double largest = 0.0, largest_folded = 0.0;
    for (int x = 0; x < tile.x_size; ++x) {
      const double weight = std::fabs(static_cast<double>(w[x]));
      largest = std::max(largest, weight);
      for (int y = 0; y < tile.y_size; ++y) {
        const int i = keys ? y * d + x : x * d + y;
        const size_t out = static_cast<size_t>(r) * tile.y_size + y;
        const double step = content.step[i];
        largest_folded = std::max(largest_folded, weight * step);
        tile.expected[out] += static_cast<double>(w[x]) * content.rows[i];
        tile.integer[out] += step;
        tile.rounding[out] +=
            (tile.x_size + 16) * 0x1p-24 * weight * (std::fabs(content.lo[i]) + content.levels * step);
        const float* vector = table ? table->reference.vector(table->page, labels[keys ? y : x]) : nullptr;
        if (vector == nullptr) continue;
        const double m = vector[keys ? x : y];
        tile.expected[out] += static_cast<double>(w[x]) * m;
        tile.rounding[out] += (tile.x_size + table->view.count + 16) * 0x1p-24 * weight * std::fabs(m);
      }
    }
    for (int y = 0; y < tile.y_size; ++y) {
      double& integer = tile.integer[static_cast<size_t>(r) * tile.y_size + y];
      integer = content.levels / 2.0 * (folded ? tile.x_size * largest_folded : integer * largest);
    }
  }
  return tile;
}

// Runs key_scores or value_sum, with what goes before or after it where there is a table.
void run_verbs(const support::Format& format, const kvasir::CodecKernels& kernels, const uint8_t* page,
               kvasir::TileInput input, const support::Table* table, float* output) {
  const bool keys = format.shape.side == reference::Side::kKeys;
  const auto verb = keys ? kernels.key_scores : kernels.value_sum;
  if (table == nullptr) return verb(format.page, page, input, output);
  // Sums may have room for the table of another sequence, which is longer.
  input.side = &table->view;
  input.entries = table->view.count + (keys ? 1 : 4);
  support::Guarded<float> entries(kvasir::entry_floats(input.count, input.entries));
  std::fill_n(entries.data(), entries.size(), 0.0f);
  if (keys) {
    kernels.begin_keys(format.page, table->view, input, entries.data());
    input.terms = entries.data();
  } else {
    input.sums = entries.data();
  }
  verb(format.page, page, input, output);
  if (!keys) {
    kernels.end_values(format.page, table->view, input, output);
  }
  CHECK_MESSAGE(entries.guards_intact(), format.text, ": wrote outside the entries");
}

void check_rows(const support::Format& format, const uint8_t* page, const Tile& tile, int count, bool fast,
                const support::Table* table) {
  const bool keys = format.shape.side == reference::Side::kKeys;
  for (const kvasir::Backend* backend : support::available_backends()) {
    const kvasir::CodecKernels* kernels = backend->codecs[format.codec];
    const auto verb = kernels == nullptr ? nullptr : keys ? kernels->key_scores : kernels->value_sum;
    if (verb == nullptr) continue;
    support::Guarded<float> input(static_cast<size_t>(count) * tile.stride);
    input.fill(tile.input.data());
    support::Guarded<float> output(static_cast<size_t>(count) * tile.y_size);
    // Scores are assigned; outputs are added to what was there.
    const float before = keys ? 777.0f : 0.5f;
    std::fill_n(output.data(), output.size(), before);
    run_verbs(format, *kernels, page, kvasir::TileInput{input.data(), count, tile.stride, fast}, table, output.data());
    double worst = 0.0;
    for (size_t i = 0; i < output.size(); ++i) {
      // What was there is one more term of the sum.
      const double want = tile.expected[i] + (keys ? 0.0 : before);
      const double bound =
          tile.integer[i] / kUnits[fast] + tile.rounding[i] + (keys ? 0.0 : (tile.x_size + 16) * 0x1p-24 * before);
      const double error = std::fabs(output[i] - want);
      worst = std::max(worst, std::isnan(error) ? INFINITY : error / bound);
    }
    CHECK_MESSAGE(worst <= 1.0, backend->name, ", ", format.text, ", ", count, " rows, ", fast ? "fast" : "exact",
                  ": error is ", worst, " of the bound");
    CHECK_MESSAGE(output.guards_intact(), backend->name, ", ", format.text, ": wrote outside the outputs");
    CHECK(std::memcmp(input.data(), tile.input.data(), input.size() * sizeof(float)) == 0);
  }
}

template <size_t kCounts>
void check_format(const support::Format& format, support::Profile profile, const int (&counts)[kCounts],
                  const support::TableShape& table_shape = {32, 7, 2}) {
  const auto& rows = support::half_rows(profile, 23, kPageTokens, format.shape.head_dim);
  std::vector<uint8_t> bytes = format.reference->encode(format.shape, rows.data());
  const support::Table table = support::make_table(table_shape, 29, format.shape.head_dim, 3.0);
  const support::Table* used = format.reference->label_bytes > 0 ? &table : nullptr;
  if (used) {
    const std::vector<uint8_t> labels = support::random_labels(table, 31);
    std::copy(labels.begin(), labels.end(), bytes.end() - static_cast<std::ptrdiff_t>(labels.size()));
  }
  support::Guarded<uint8_t> page(bytes.size());
  page.fill(bytes.data());
  const Tile tile = make_tile(format, page.data(), used);
  for (const int count : counts) {
    for (const bool fast : {false, true}) check_rows(format, page.data(), tile, count, fast, used);
  }
}

}  // namespace

TEST_CASE("tiles: every format at every head dim") {
  support::Sampler sampler;
  for (const int head_dim : support::kHeadDims) {
    for (const support::Format& format : support::all_formats(head_dim)) {
      if (sampler.skip()) continue;
      check_format(format, support::Profile::kNormal, {7});
      check_format(format, support::Profile::kOutliers, {4});
    }
  }
}

TEST_CASE("tiles: every number of rows") {
  support::Sampler sampler;
  for (const int head_dim : {48, 128}) {
    for (const support::Format& format : support::all_formats(head_dim)) {
      if (sampler.skip()) continue;
      check_format(format, support::Profile::kNormal, support::kRowCounts);
    }
  }
}

TEST_CASE("tiles: every kind of data") {
  support::Sampler sampler;
  for (const support::Format& format : support::all_formats(80)) {
    for (const support::Profile profile : support::kProfiles) {
      if (sampler.skip()) continue;
      check_format(format, profile, {5});
    }
  }
}

TEST_CASE("tiles: side tables of every shape, every number of rows") {
  support::Sampler sampler;
  for (const int head_dim : {32, 80, 128}) {
    for (const support::Format& format : support::all_formats(head_dim)) {
      if (format.reference->label_bytes == 0 || !format.options.empty()) continue;
      for (const support::TableShape& table : support::kTableShapes) {
        if (sampler.skip()) continue;
        check_format(format, support::Profile::kNormal, support::kRowCounts, table);
      }
    }
  }
}
