// Attention of chunks of query tokens against its definition in double; and the float16 rows that it reads.
#include "kernels/cuda/prompt/prompt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cuda/rows/finish.h"
#include "kernels/cuda/rows/unpack.h"
#include "pages/page_case.h"
#include "reference/attention.h"
#include "reference/half.h"
#include "support/tolerance.h"

namespace {

using namespace kvasir::cuda;
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
};

std::string describe(const Setting& s) {
  std::ostringstream text;
  text << "d=" << s.head_dim << " kv=" << s.kv_heads << " group=" << s.group << " tokens=" << s.tokens << " of "
       << s.length << " precision=" << static_cast<int>(s.precision) << " type=" << static_cast<int>(s.type)
       << " window=" << s.sliding_window << " part=" << s.part << " scale=" << s.scale << " queries=" << s.query_size
       << " outliers=" << s.key_offset << " strong=" << s.strong;
  return text.str();
}

uint16_t half_bits(double x) { return reference::half_nearest(x); }
float half_of(double x) { return static_cast<float>(reference::half_value(half_bits(x))); }

uint16_t bfloat_bits(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  return static_cast<uint16_t>(word >> 16);
}

// What NMSE may be. Float16 rounds to within 2^-11, a third of its square on average; errors of different tokens do not
// know of each other, so those of outputs are as large as those of what is summed.
double limit_of(const Setting& s) {
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
};

Case make_case(const Setting& s, unsigned seed) {
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
  made.query_bytes = s.type == kvasir::ElementType::kFloat32 ? bytes_of(made.queries) : bytes_of(narrow);
  return made;
}

// One side's tokens first .. first + count - 1 in float16: [kv_heads][stride][head_dim], and what they lack. Rows
// behind the last hold NaN.
void round_part(const Setting& s, const std::vector<float>& rows, int64_t first, int64_t count, int64_t stride,
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

std::vector<float> numbers_of(const std::vector<uint8_t>& bytes, kvasir::ElementType type) {
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

std::vector<uint8_t> run(const Setting& s, const Case& made) {
  const Buffer queries(made.query_bytes), outputs(made.query_bytes.size(), 0xff);
  PromptRequest request = {};
  request.kv_heads = s.kv_heads;
  request.group = s.group;
  request.head_dim = s.head_dim;
  request.tokens = s.tokens;
  request.type = s.type;
  request.precision = s.precision;
  request.queries = queries.data();
  request.outputs = outputs.data();
  request.first_query = s.length - s.tokens;
  request.sliding_window = s.sliding_window;
  request.scale = s.scale > 0.0f ? s.scale : 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const Buffer states(prompt_state_bytes(request), 0xff);
  request.states = states.as<float>();
  bool first = true;
  for (int64_t begin = 0; begin < s.length; begin += s.part) {
    const int64_t count = std::min(s.part, s.length - begin), stride = count + 3;
    std::vector<uint16_t> high[2], low[2];
    for (int side = 0; side < 2; ++side) {
      round_part(s, made.rows[side], begin, count, stride, high[side], low[side]);
    }
    const Buffer keys(bytes_of(high[0])), keys_low(bytes_of(low[0])), values(bytes_of(high[1]));
    const PromptRows rows = {keys.as<uint16_t>(),
                             has_low_keys(s.precision) ? keys_low.as<uint16_t>() : nullptr,
                             values.as<uint16_t>(),
                             stride,
                             count,
                             begin};
    const cudaError_t error = launch_prompt_part(request, rows, first, nullptr);
    CHECK(error == cudaSuccess, describe(s) << ": " << cudaGetErrorString(error));
    CUDA(cudaDeviceSynchronize());
    first = false;
  }
  const cudaError_t error = launch_prompt_finish(request, nullptr);
  CHECK(error == cudaSuccess, describe(s) << ": " << cudaGetErrorString(error));
  CUDA(cudaDeviceSynchronize());
  return outputs.read();
}

double error_of(const Setting& s, const Case& made, const std::vector<uint8_t>& outputs) {
  const reference::AttentionShape shape = {s.kv_heads * s.group, s.kv_heads, s.head_dim, s.sliding_window, s.scale};
  return reference::nmse(numbers_of(outputs, s.type).data(),
                         reference::attention(shape, made.rows[0].data(), made.rows[1].data(), 0, s.length,
                                              made.queries.data(), s.tokens));
}

void check_prompt(const Setting& s) {
  const Case made = make_case(s, 3);
  const double error = error_of(s, made, run(s, made));
  CHECK(error <= limit_of(s), describe(s) << ": NMSE " << error);
}

const PromptPrecision kPrecisions[] = {PromptPrecision::kFast, PromptPrecision::kExact, PromptPrecision::kHalves,
                                       PromptPrecision::kTurnedHalves};

DEVICE_CASE("prompt: every head dim and precision") {
  for (int d = 32; d <= 256; d += 16) {
    for (const PromptPrecision precision : kPrecisions) check_prompt({d, 2, 2, 19, 150, precision});
  }
}

// Rows enough for kernels with products of warp groups, where there are such.
DEVICE_CASE("prompt: many rows, head dims that fill no tile") {
  for (int d = 32; d <= 128; d += 16) {
    for (const PromptPrecision precision : {PromptPrecision::kFast, PromptPrecision::kExact}) {
      for (const kvasir::ElementType type : {kvasir::ElementType::kFloat32, kvasir::ElementType::kBFloat16}) {
        check_prompt({d, 2, 4, 70, 500, precision, type});
      }
    }
  }
}

DEVICE_CASE("prompt: many rows, windows and parts") {
  for (const int d : {64, 96, 128}) {
    for (const int64_t window : {0, 1, 63, 128, 300}) {
      for (const int64_t part : {70, 128, 1 << 20}) {
        for (const PromptPrecision precision : {PromptPrecision::kFast, PromptPrecision::kExact}) {
          Setting s = {d, 1, 4, 90, 600, precision, kvasir::ElementType::kBFloat16};
          s.sliding_window = window;
          s.part = part;
          check_prompt(s);
        }
      }
    }
  }
}

DEVICE_CASE("prompt: chunks, groups and contexts that fill no tile") {
  for (const int group : {1, 3, 8}) {
    for (const int tokens : {1, 2, 31, 64, 131}) {
      for (const int64_t more : {0, 1, 65, 300}) {
        check_prompt({64, 1, group, tokens, tokens + more, kPrecisions[(tokens + more) % 4]});
      }
    }
  }
}

DEVICE_CASE("prompt: queries and outputs of 16 bits") {
  for (const int d : {64, 128, 256}) {
    for (const kvasir::ElementType type : {kvasir::ElementType::kFloat16, kvasir::ElementType::kBFloat16}) {
      for (const PromptPrecision precision : kPrecisions) check_prompt({d, 2, 4, 40, 300, precision, type});
    }
  }
}

DEVICE_CASE("prompt: parts of any size give what one gives") {
  for (const int d : {64, 128, 256}) {
    for (const int64_t part : {1, 50, 64, 128, 333}) {
      Setting s = {d, 2, 3, 37, part == 1 ? 45 : 500, PromptPrecision::kHalves};
      s.part = part;
      check_prompt(s);
    }
  }
}

DEVICE_CASE("prompt: sliding windows") {
  for (const int d : {64, 128, 256}) {
    for (const int64_t window : {1, 2, 63, 64, 100, 300, 5000}) {
      for (const int64_t part : {70, 1 << 20}) {
        Setting s = {d, 2, 2, 90, 400, PromptPrecision::kHalves};
        s.sliding_window = window;
        s.part = part;
        check_prompt(s);
      }
    }
  }
}

DEVICE_CASE("prompt: scores of hundreds, outliers, queries of any size") {
  for (const int d : {64, 128, 256}) {
    // Scores have a deviation of 8; one token's reach 30 and more.
    Setting peaked = {d, 2, 4, 40, 900};
    peaked.query_size = 8.0;
    peaked.strong = 17;
    check_prompt(peaked);
    Setting outliers = {d, 2, 4, 40, 900};
    outliers.key_offset = 20.0;
    check_prompt(outliers);
    for (const double size : {1e-12, 1e7}) {
      Setting scaled = {d, 2, 4, 40, 300};
      scaled.query_size = size;
      scaled.scale = static_cast<float>(1.0 / size / std::sqrt(d));
      check_prompt(scaled);
    }
  }
}

DEVICE_CASE("prompt: a long context") {
  for (const PromptPrecision precision : kPrecisions) {
    Setting s = {128, 1, 2, 3, 6000, precision};
    s.part = 2048;
    check_prompt(s);
  }
}

DEVICE_CASE("prompt: equal calls give equal bits") {
  Setting s = {128, 4, 4, 100, 3000};
  s.part = 1000;
  const Case made = make_case(s, 5);
  CHECK(run(s, made) == run(s, made), describe(s));
}

DEVICE_CASE("prompt: a query that sees nothing gives zeros") {
  Setting s = {64, 1, 1, 4, 4};
  const Case made = make_case(s, 6);
  const Buffer queries(made.query_bytes), outputs(made.query_bytes.size(), 0xff);
  PromptRequest request = {1, 1, 64, 4, s.type, s.precision, queries.data(), outputs.data(), 0, 0, 0.125f, nullptr};
  const Buffer states(prompt_state_bytes(request), 0xff);
  request.states = states.as<float>();
  CUDA(launch_prompt_part(request, {nullptr, nullptr, nullptr, 0, 0, 0}, true, nullptr));
  CUDA(launch_prompt_finish(request, nullptr));
  for (const float x : numbers_of(outputs.read(), s.type)) CHECK(x == 0.0f, x);
}

// Float16 rows of pages, and of float32 rows: the nearest numbers, and the nearest to what these lack.
void check_halves(const page_case::Setting& setting) {
  const page_case::Layer layer = page_case::make_layer(setting, 9, true);
  std::vector<uint8_t> all;
  for (const auto& page : layer.pages) all.insert(all.end(), page.begin(), page.end());
  const Buffer memory(all);
  std::vector<const uint8_t*> pages;
  for (int p = 0; p < setting.pages; ++p) pages.push_back(memory.data() + layer.pages[0].size() * p);
  const int d = setting.head_dim;
  const int64_t tokens = int64_t{setting.pages} * kvasir::kPageTokens;
  for (const bool rounded : {false, true}) {
    const size_t bytes = layer.decoded[0].size() * 2;
    const Buffer keys(bytes, 0xff), keys_low(bytes, 0xff), values(bytes, 0xff);
    const HalfRows out[2] = {{keys.as<uint16_t>(), keys_low.as<uint16_t>(), d, tokens * d},
                             {values.as<uint16_t>(), nullptr, d, tokens * d}};
    cudaError_t error = cudaSuccess;
    if (rounded) {
      for (int side = 0; side < 2; ++side) {
        const Buffer rows(bytes_of(layer.decoded[side]));
        error = round_rows({setting.kv_heads, d}, rows.as<float>(), tokens, out[side], nullptr);
        CUDA(cudaDeviceSynchronize());
      }
    } else {
      UnpackHalfRowsRequest request = {};
      request.shape = {setting.kv_heads, d};
      page_case::make_sides(setting, request.sides);
      request.pages = pages.data();
      request.page_count = setting.pages;
      request.out[0] = out[0];
      request.out[1] = out[1];
      error = unpack_half_rows(request, nullptr);
    }
    CHECK(error == cudaSuccess, page_case::describe(setting) << ": " << cudaGetErrorString(error));
    CUDA(cudaDeviceSynchronize());
    std::vector<uint16_t> expected[3];
    for (const float x : layer.decoded[0]) {
      expected[0].push_back(half_bits(x));
      expected[1].push_back(half_bits(static_cast<double>(x) - half_of(x)));
    }
    for (const float x : layer.decoded[1]) expected[2].push_back(half_bits(x));
    const Buffer* got[] = {&keys, &keys_low, &values};
    for (int i = 0; i < 3; ++i) {
      std::vector<uint8_t> bits = got[i]->read();
      // Nothing is lacking may be either zero.
      for (size_t j = 0; i == 1 && j < expected[1].size(); ++j) {
        if ((expected[1][j] & 0x7fff) == 0) expected[1][j] = 0, bits[2 * j + 1] &= 0x7f;
      }
      const std::string wrong = page_case::difference(bits, bytes_of(expected[i]));
      CHECK(wrong.empty(), page_case::describe(setting) << " rounded=" << rounded << " " << i << ": " << wrong);
    }
  }
}

DEVICE_CASE("prompt: float16 rows of pages") {
  using page_case::kHalves;
  using page_case::progressive;
  using page_case::uniform;
  for (const int d : {64, 96, 128, 256}) {
    check_halves({d, 2, 2, kHalves, kHalves, true});
    for (const int bits : {1, 2, 3, 4, 8, 16}) check_halves({d, 2, 2, uniform(bits), uniform(bits), true});
    for (const int bits : {2, 16}) check_halves({d, 2, 2, progressive(bits), progressive(bits), true});
  }
  for (const int d : {32, 80}) check_halves({d, 2, 2, uniform(4), uniform(4), false});
  check_halves({64, 1, 260, uniform(2), uniform(4), true});
}

}  // namespace
