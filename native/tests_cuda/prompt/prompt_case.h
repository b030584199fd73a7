// Prompts with what they are compared to: random rows and queries, attention by its definition in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/prompt/prompt.h"
#include "pages/page_case.h"
#include "reference/attention.h"
#include "reference/half.h"
#include "support/tolerance.h"

namespace prompt_case {

using kvasir::cuda::PromptMask;
using kvasir::cuda::PromptPart;
using kvasir::cuda::PromptPrecision;
using kvasir::cuda::PromptRequest;
using page_case::Buffer;
using page_case::bytes_of;

struct Setting {
  int head_dim, kv_heads, group, tokens;
  int64_t length;
  PromptPrecision precision = PromptPrecision::kExact;
  kvasir::ElementType type = kvasir::ElementType::kFloat32;
  int64_t sliding_window = 0;
  int64_t part = 1 << 20;   // tokens that a launch takes
  float scale = 0.0f;       // of scores; 0: the usual one
  double query_size = 1.0;  // standard deviation
  double key_offset = 0.0;  // of some channels: outliers
  int64_t strong = -1;      // a token whose keys are four times as large
  bool guesses = false;     // the query tokens are a tree
  float soft_cap = 0.0f;
  bool ends = false;  // sink logits, and sums are asked for
};

inline std::string describe(const Setting& s) {
  std::ostringstream text;
  text << "d=" << s.head_dim << " kv=" << s.kv_heads << " group=" << s.group << " tokens=" << s.tokens << " of "
       << s.length << " precision=" << static_cast<int>(s.precision) << " type=" << static_cast<int>(s.type)
       << " window=" << s.sliding_window << " part=" << s.part << " scale=" << s.scale << " queries=" << s.query_size
       << " outliers=" << s.key_offset << " strong=" << s.strong << " guesses=" << s.guesses << " cap=" << s.soft_cap
       << " ends=" << s.ends;
  return text.str();
}

inline uint16_t half_bits(double x) { return reference::half_nearest(x); }
inline float half_of(double x) { return static_cast<float>(reference::half_value(half_bits(x))); }

inline uint16_t bfloat_bits(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  return static_cast<uint16_t>(word >> 16);
}

// What NMSE may be. Float16 rounds to within 2^-11, a third of its square on average; errors of different tokens do not
// know of each other, so those of outputs are as large as those of what is summed.
inline double limit_of(const Setting& s) {
  constexpr double kRounded = 0x1p-22 / 3;
  double limit = s.precision == PromptPrecision::kFast    ? support::kFastNmse
                 : s.precision == PromptPrecision::kExact ? 2 * kRounded  // weights and values
                                                          : support::kFloatNmse;
  if (s.type == kvasir::ElementType::kFloat16) limit += kRounded;
  if (s.type == kvasir::ElementType::kBFloat16) limit += 64 * kRounded;
  return limit;
}

struct Case {
  std::vector<float> rows[2];  // [length][kv_heads][head_dim]
  std::vector<float> queries;  // [tokens][query heads][head_dim]: what the bytes say
  std::vector<uint8_t> query_bytes;
  reference::Guesses guesses;
};

// Each token follows a random one of those before it, or none.
inline reference::Guesses make_tree(int tokens, std::mt19937& random) {
  reference::Guesses tree;
  for (int i = 0; i < tokens; ++i) {
    const int parent = static_cast<int>(random() % static_cast<unsigned>(i + 1)) - 1;
    tree.sees.push_back(parent < 0 ? std::vector<bool>(static_cast<size_t>(tokens)) : tree.sees[parent]);
    tree.sees.back()[static_cast<size_t>(i)] = true;
    tree.depths.push_back(parent < 0 ? 0 : tree.depths[parent] + 1);
  }
  return tree;
}

inline Case make_case(const Setting& s, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Case made;
  for (int side = 0; side < 2; ++side) {
    for (int64_t t = 0; t < s.length; ++t) {
      for (int i = 0; i < s.kv_heads * s.head_dim; ++i) {
        double x = normal(random);
        if (side == 0 && i % 13 == 4) x += s.key_offset;
        if (side == 0 && t == s.strong) x *= 4.0;
        const bool half =
            s.precision == PromptPrecision::kHalves || (side == 1 && s.precision == PromptPrecision::kTurnedHalves);
        made.rows[side].push_back(half ? half_of(x) : static_cast<float>(x));
      }
    }
  }
  std::vector<uint16_t> narrow;
  for (int i = 0; i < s.tokens * s.kv_heads * s.group * s.head_dim; ++i) {
    auto x = static_cast<float>(s.query_size * normal(random));
    if (s.type == kvasir::ElementType::kFloat16) {
      narrow.push_back(half_bits(x));
      x = half_of(x);
    } else if (s.type == kvasir::ElementType::kBFloat16) {
      narrow.push_back(bfloat_bits(x));
      x = static_cast<float>(reference::bfloat_value(narrow.back()));
    }
    made.queries.push_back(x);
  }
  if (s.guesses) made.guesses = make_tree(s.tokens, random);
  made.query_bytes = s.type == kvasir::ElementType::kFloat32 ? bytes_of(made.queries) : bytes_of(narrow);
  return made;
}

// One side's tokens first .. first + count - 1 in float16: [kv_heads][stride][head_dim], and what they lack. Rows
// behind the last hold NaN.
inline void round_part(const Setting& s, const std::vector<float>& rows, int64_t first, int64_t count, int64_t stride,
                       std::vector<uint16_t>& high, std::vector<uint16_t>& low) {
  high.assign(static_cast<size_t>(s.kv_heads * stride * s.head_dim), 0x7fff);
  low = high;
  for (int h = 0; h < s.kv_heads; ++h) {
    for (int64_t t = 0; t < count; ++t) {
      for (int c = 0; c < s.head_dim; ++c) {
        const double x = rows[static_cast<size_t>(((first + t) * s.kv_heads + h) * s.head_dim + c)];
        const auto at = static_cast<size_t>((h * stride + t) * s.head_dim + c);
        high[at] = half_bits(x);
        low[at] = half_bits(x - half_of(x));
      }
    }
  }
}

inline std::vector<float> numbers_of(const std::vector<uint8_t>& bytes, kvasir::ElementType type) {
  std::vector<float> numbers(bytes.size() / (type == kvasir::ElementType::kFloat32 ? 4 : 2));
  for (size_t i = 0; i < numbers.size(); ++i) {
    uint16_t bits = 0;
    if (type == kvasir::ElementType::kFloat32) {
      std::memcpy(&numbers[i], bytes.data() + 4 * i, 4);
      continue;
    }
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    numbers[i] = static_cast<float>(type == kvasir::ElementType::kFloat16 ? reference::half_value(bits)
                                                                          : reference::bfloat_value(bits));
  }
  return numbers;
}

// Logits of learned sinks, by query head.
inline std::vector<float> sink_logits(const Setting& s) {
  std::vector<float> logits;
  for (int h = 0; h < s.kv_heads * s.group; ++h) logits.push_back(0.5f * static_cast<float>(h) - 1.0f);
  return logits;
}

// One prompt on the device.
class DevicePrompt {
 public:
  DevicePrompt(const Setting& s, const Case& made, const float* logits)
      : setting_(s),
        made_(made),
        queries_(made.query_bytes),
        outputs_(made.query_bytes.size(), 0xff),
        sums_(static_cast<size_t>(s.tokens * s.kv_heads * s.group) * sizeof(float), 0xff) {
    request_ = {};
    request_.kv_heads = s.kv_heads;
    request_.group = s.group;
    request_.head_dim = s.head_dim;
    request_.tokens = s.tokens;
    request_.type = s.type;
    request_.precision = s.precision;
    request_.queries = queries_.data();
    request_.outputs = outputs_.data();
    request_.first_query = s.length - s.tokens;
    request_.sliding_window = s.sliding_window;
    request_.scale = s.scale > 0.0f ? s.scale : 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    request_.soft_cap = s.soft_cap;
    request_.part_tokens = std::min(s.part, s.length);
    if (s.ends) request_.ends = {logits, sums_.as<float>()};
    if (s.guesses) {
      std::vector<PromptMask> masks;
      for (size_t i = 0; i < made.guesses.sees.size(); ++i) {
        PromptMask mask = {0, request_.first_query + made.guesses.depths[i]};
        for (size_t j = 0; j < made.guesses.sees.size(); ++j) {
          mask.bits |= static_cast<uint64_t>(made.guesses.sees[i][j]) << j;
        }
        masks.push_back(mask);
      }
      masks_ = std::make_unique<Buffer>(bytes_of(masks));
      request_.masks = masks_->as<PromptMask>();
      request_.masked_from = request_.first_query;
    }
    states_ = std::make_unique<Buffer>(prompt_state_bytes(request_), 0xff);
    request_.states = states_->as<float>();
  }

  const PromptRequest& request() const { return request_; }
  int parts() const { return static_cast<int>((setting_.length + setting_.part - 1) / setting_.part); }

  // Part n, whose rows stay until the next is asked for.
  PromptPart part(int n) {
    const int64_t begin = n * setting_.part, count = std::min(setting_.part, setting_.length - begin);
    const int64_t stride = count + 3;
    std::vector<uint16_t> high[2], low[2];
    for (int side = 0; side < 2; ++side) {
      round_part(setting_, made_.rows[side], begin, count, stride, high[side], low[side]);
    }
    rows_[0] = std::make_unique<Buffer>(bytes_of(high[0]));
    rows_[1] = std::make_unique<Buffer>(bytes_of(low[0]));
    rows_[2] = std::make_unique<Buffer>(bytes_of(high[1]));
    const bool lacks = has_low_keys(setting_.precision);
    return {request_,
            {rows_[0]->as<uint16_t>(), lacks ? rows_[1]->as<uint16_t>() : nullptr, rows_[2]->as<uint16_t>(), stride,
             count, begin},
            n == 0};
  }

  std::vector<uint8_t> outputs() const { return outputs_.read(); }
  std::vector<uint8_t> sums() const { return setting_.ends ? sums_.read() : std::vector<uint8_t>(); }

 private:
  const Setting setting_;
  const Case& made_;
  const Buffer queries_, outputs_, sums_;
  std::unique_ptr<Buffer> masks_, states_, rows_[3];
  PromptRequest request_;
};

struct Result {
  std::vector<uint8_t> outputs, sums;
};

// All prompts together, part after part.
inline std::vector<Result> run(const std::vector<Setting>& settings, const std::vector<Case>& cases) {
  const Buffer logits(bytes_of(sink_logits(settings[0])));
  std::vector<std::unique_ptr<DevicePrompt>> prompts;
  int rounds = 0;
  for (size_t i = 0; i < settings.size(); ++i) {
    prompts.push_back(std::make_unique<DevicePrompt>(settings[i], cases[i], logits.as<float>()));
    rounds = std::max(rounds, prompts.back()->parts());
  }
  for (int n = 0; n < rounds; ++n) {
    std::vector<PromptPart> parts;
    for (const auto& prompt : prompts) {
      if (n < prompt->parts()) parts.push_back(prompt->part(n));
    }
    const cudaError_t error = launch_prompt_parts(parts.data(), static_cast<int>(parts.size()), nullptr);
    CHECK(error == cudaSuccess, describe(settings[0]) << ": " << cudaGetErrorString(error));
    CUDA(cudaDeviceSynchronize());
  }
  std::vector<PromptRequest> requests;
  for (const auto& prompt : prompts) requests.push_back(prompt->request());
  const cudaError_t error = launch_prompt_finishes(requests.data(), static_cast<int>(requests.size()), nullptr);
  CHECK(error == cudaSuccess, describe(settings[0]) << ": " << cudaGetErrorString(error));
  CUDA(cudaDeviceSynchronize());
  std::vector<Result> results;
  for (const auto& prompt : prompts) results.push_back({prompt->outputs(), prompt->sums()});
  return results;
}

// One prompt.
inline Result run(const Setting& s, const Case& made) { return run(std::vector<Setting>{s}, {made})[0]; }

inline void check_result(const Setting& s, const Case& made, const Result& result) {
  reference::AttentionShape shape = {s.kv_heads * s.group, s.kv_heads, s.head_dim,
                                     s.sliding_window,     s.scale,    s.soft_cap};
  if (s.ends) {
    for (const float logit : sink_logits(s)) shape.sinks.push_back(logit);
  }
  const auto expected = reference::attend(shape, made.rows[0].data(), made.rows[1].data(), 0, s.length,
                                          made.queries.data(), s.tokens, s.guesses ? &made.guesses : nullptr);
  const double error = reference::nmse(numbers_of(result.outputs, s.type).data(), expected.outputs);
  CHECK(error <= limit_of(s), describe(s) << ": NMSE " << error);
  if (!s.ends) return;
  const std::vector<float> sums = numbers_of(result.sums, kvasir::ElementType::kFloat32);
  for (size_t i = 0; i < sums.size(); ++i) {
    CHECK(std::abs(sums[i] - expected.log_sums[i]) <= 2e-3, describe(s) << ": sum " << i << " " << sums[i]);
  }
}

inline void check_prompt(const Setting& s) {
  const Case made = make_case(s, 3);
  check_result(s, made, run(s, made));
}

}  // namespace prompt_case
