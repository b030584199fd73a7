#include "codecs/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/checks.h"
#include "base/half.h"
#include "base/kmeans.h"
#include "base/scratch.h"
#include "codecs/pattern/format.h"
#include "codecs/pattern/formula.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

// The range of a group must not pass the largest float16, 65504; a minimum that is rounded down may add 32 to it.
constexpr float kMaxRange = 65504.0f - 64.0f;

constexpr CodecOption kOptions[] = {
    {"group", "elements that share parameters: 32, 64, 128 or all channels; default the longest"},
    {"grid", "of the residuals, 0: levels from end to end; 1: cells; default 1 at 1 and 2 bits, else 0"},
    {"patterns", "patterns mined from the prompt, 2..64; default 32"},
    {"metric", "0: match by min-max distance (default); 1: by Euclidean distance"},
    {"new_patterns", "1: pages sealed after the prompt add their centre (default); 0: they do not"},
    {"accept", "keys: 1: a page uses patterns only where they lower its squared ranges (default); 0: always"},
    {"alpha", "values: level of the test that a pattern must pass, 0 < alpha < 0.5, default 0.05; 0: no test"},
    {"raw",
     "1: a vector that is nearest to no pattern has none (default); 0: the nearest of the patterns, as in the paper"},
    {nullptr, nullptr},
};

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "codec pattern: " + text);
}

float flag(const CodecOptions& options, const char* name, double otherwise) {
  const double value = option_of(options, name, otherwise);
  if (value != 0 && value != 1) refuse(std::string(name) + " must be 0 or 1, not " + float_text(value));
  return static_cast<float>(value);
}

PageFormat configure(Side side, int bits, int head_dim, const CodecOptions& options) {
  CodecOptions residual_options;
  for (const char* name : {"group", "grid"}) {
    if (options.count(name)) residual_options[name] = options.at(name);
  }
  PageFormat format = configure_codec(codec_index("uniform"), side, bits, head_dim, residual_options);

  const double patterns = option_of(options, "patterns", 32);
  if (patterns != std::floor(patterns) || patterns < 2 || patterns > 64) {
    refuse("patterns must be 2..64, not " + float_text(patterns));
  }
  const double alpha = option_of(options, "alpha", 0.05);
  if (!(alpha >= 0 && alpha < 0.5)) refuse("alpha must be at least 0 and below 0.5, not " + float_text(alpha));
  format.numbers[pattern::kPatterns] = static_cast<float>(patterns);
  format.numbers[pattern::kSquaredMetric] = flag(options, "metric", 0);
  format.numbers[pattern::kNewPatterns] = flag(options, "new_patterns", 1);
  format.numbers[pattern::kAcceptTest] = flag(options, "accept", 1);
  format.numbers[pattern::kAcceptRatio] =
      alpha == 0 ? -1.0f : static_cast<float>(pattern::accept_ratio(head_dim, alpha));
  format.numbers[pattern::kNeverRaw] = 1 - flag(options, "raw", 1);
  format.page_bytes = pattern::page_bytes(format);
  return format;
}

// Patterns of the prompt, at the first page that a sequence seals: k-means over all tokens that it has.
void mine(const PageFormat& format, SealInput& input, SideTable& table) {
  const int d = format.head_dim;
  const int64_t points = std::min(input.tokens, pattern::kMiningPoints);
  KMeansOptions options;
  options.clusters = static_cast<int>(std::min<int64_t>(pattern::mined_patterns(format), points));
  const int rows = options.clusters;
  const std::shared_ptr<uint16_t> vectors = input.take(int64_t{input.kv_heads} * rows * d);
  input.threads.run(input.kv_heads, [&](int head) {
    struct Points;
    struct Centres;
    float* sample = thread_scratch<Points, float>(static_cast<size_t>(points) * d);
    float* centres = thread_scratch<Centres, float>(static_cast<size_t>(rows) * d);
    if (points == input.tokens) {
      input.rows(head, 0, points, sample);
    } else {
      for (int64_t i = 0; i < points; ++i) {
        input.rows(head, i * input.tokens / points, 1, sample + static_cast<size_t>(i) * d);
      }
    }
    kmeans(sample, points, d, options, input.match, input.threads, centres, nullptr);
    uint16_t* out = vectors.get() + static_cast<size_t>(head) * rows * d;
    for (int i = 0; i < rows * d; ++i) out[i] = float_to_half(centres[i]);
  });
  table.chunks.push_back({vectors, rows, 0});
}

// The Chebyshev centre of a page: half way between the extremes of each channel.
void add_centre(const PageFormat& format, SealInput& input, int64_t page, SideTable& table) {
  const int d = format.head_dim;
  const std::shared_ptr<uint16_t> vectors = input.take(int64_t{input.kv_heads} * d);
  struct PageRows;
  float* rows = thread_scratch<PageRows, float>(static_cast<size_t>(kPageTokens) * d);
  for (int head = 0; head < input.kv_heads; ++head) {
    input.rows(head, page * kPageTokens, kPageTokens, rows);
    for (int c = 0; c < d; ++c) {
      float lowest = rows[c], highest = rows[c];
      for (int t = 1; t < kPageTokens; ++t) {
        lowest = std::min(lowest, rows[t * d + c]);
        highest = std::max(highest, rows[t * d + c]);
      }
      vectors.get()[head * d + c] = float_to_half(0.5f * lowest + 0.5f * highest);
    }
  }
  table.chunks.push_back({vectors, 1, page});
}

void grow(const PageFormat& format, SealInput& input, SideTable& table) {
  if (table.chunks.empty()) {
    mine(format, input, table);
  } else if (pattern::adds_patterns(format)) {
    for (int64_t i = 0; i < input.page_count; ++i) add_centre(format, input, input.first_page + i, table);
  }
}

// There are more tokens in the first page than patterns to mine.
int64_t growth(const PageFormat& format, int kv_heads, int64_t pages, bool has_vectors) {
  const int64_t added = pattern::adds_patterns(format) ? pages : 0;
  const int64_t vectors = has_vectors || pages == 0 ? added : pattern::mined_patterns(format);
  return vectors * kv_heads * format.head_dim;
}

// The labelled vectors of a view as float32, label 0 a zero vector.
const float* label_vectors(const SideView& side, int d) {
  struct LabelVectors;
  float* vectors = thread_scratch<LabelVectors, float>(static_cast<size_t>(kMaxLabels) * d);
  std::fill(vectors, vectors + d, 0.0f);
  for (int label = 1; label <= side.visible; ++label) {
    const uint16_t* vector = side.vectors[side.entry(label) - 1];
    for (int c = 0; c < d; ++c) vectors[label * d + c] = half_to_float(vector[c]);
  }
  return vectors;
}

float range_of(const float* row, int d) {
  const auto [low, high] = std::minmax_element(row, row + d);
  return *high - *low;
}

// Sum over channels and groups of tokens of the squared range of the page's rows, less vectors[label] of each; infinite
// where one is too wide.
double squared_ranges(const PageFormat& format, const float* rows, const float* vectors, const int* labels) {
  const int d = format.head_dim;
  float lowest[kMaxHeadDim], highest[kMaxHeadDim];
  double sum = 0;
  for (int t = 0; t < kPageTokens; ++t) {
    const bool begins = t % format.group == 0;
    const float* vector = vectors + labels[t] * d;
    for (int c = 0; c < d; ++c) {
      const float x = rows[t * d + c] - vector[c];
      lowest[c] = begins || x < lowest[c] ? x : lowest[c];
      highest[c] = begins || x > highest[c] ? x : highest[c];
    }
    if ((t + 1) % format.group != 0) continue;
    for (int c = 0; c < d; ++c) {
      const float range = highest[c] - lowest[c];
      if (range > kMaxRange) return INFINITY;
      sum += static_cast<double>(range) * range;
    }
  }
  return sum;
}

// Keys share parameters across the tokens of a page, so patterns are taken or left by the page.
void decide_keys(const PageFormat& format, const float* rows, const float* vectors, int* labels) {
  const int none[kPageTokens] = {};
  const double flat = squared_ranges(format, rows, vectors, labels);
  const double raw = squared_ranges(format, rows, vectors, none);
  const bool accept = pattern::tests_labels(format) ? flat < raw : flat < INFINITY;
  if (!accept) std::fill(labels, labels + kPageTokens, 0);
}

// Values have parameters of their own, so each token decides.
void decide_values(const PageFormat& format, const float* rows, const float* vectors, int* labels) {
  const int d = format.head_dim;
  const float ratio = format.numbers[pattern::kAcceptRatio];
  float residual[kMaxHeadDim];
  for (int t = 0; t < kPageTokens; ++t) {
    if (labels[t] == 0) continue;
    for (int c = 0; c < d; ++c) residual[c] = rows[t * d + c] - vectors[labels[t] * d + c];
    const float flat = range_of(residual, d);
    const bool accept = flat <= kMaxRange && (ratio < 0 || flat <= ratio * range_of(rows + t * d, d));
    if (!accept) labels[t] = 0;
  }
}

void flatten(const PageFormat& format, const SideView& side, const MatchKernels& match, float* rows, uint8_t* page) {
  const int d = format.head_dim;
  const float* vectors = label_vectors(side, d);
  // Label 0, the zero vector, takes part or not.
  const int first = pattern::matches_raw(format) || side.visible == 0 ? 0 : 1;
  const int candidates = side.visible + 1 - first;
  struct Blocks;
  float* blocks = thread_scratch<Blocks, float>(match_block_floats(candidates, d));
  make_match_blocks(vectors + first * d, candidates, d, blocks);

  int labels[kPageTokens];
  float distances[kPageTokens];
  const auto search = pattern::by_squares(format) ? match.squared : match.min_max;
  search(rows, kPageTokens, d, blocks, candidates, labels, distances);
  for (int& label : labels) label += first;
  (format.side == Side::kKeys ? decide_keys : decide_values)(format, rows, vectors, labels);

  uint8_t* stored = page + pattern::labels_offset(format);
  for (int t = 0; t < kPageTokens; ++t) {
    stored[t] = static_cast<uint8_t>(labels[t]);
    for (int c = 0; c < d; ++c) rows[t * d + c] -= vectors[labels[t] * d + c];
  }
}

void restore(const PageFormat& format, const SideView& side, const uint8_t* page, float* rows) {
  const int d = format.head_dim;
  const float* vectors = label_vectors(side, d);
  const uint8_t* labels = page + pattern::labels_offset(format);
  for (int t = 0; t < kPageTokens; ++t) {
    for (int c = 0; c < d; ++c) rows[t * d + c] += vectors[labels[t] * d + c];
  }
}

int labelled(const PageFormat& format, const uint8_t* page) {
  const uint8_t* labels = page + pattern::labels_offset(format);
  return static_cast<int>(kPageTokens - std::count(labels, labels + kPageTokens, 0));
}

bool valid(const PageFormat& format, const SideView& side, const uint8_t* page, size_t) {
  const uint8_t* labels = page + pattern::labels_offset(format);
  return std::all_of(labels, labels + kPageTokens, [&](uint8_t label) { return label <= side.visible; });
}

constexpr Codec make_codec() {
  Codec codec = {
      "pattern",
      "PatternKV: the nearest of the sequence's patterns is subtracted, the residual quantised",
      1u << 1 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 8,
      kOptions,
      configure,
      grow,
      growth,
      flatten,
      restore,
      labelled,
  };
  codec.valid = valid;
  return codec;
}

}  // namespace

extern const Codec pattern_codec;
const Codec pattern_codec = make_codec();

}  // namespace kvasir
