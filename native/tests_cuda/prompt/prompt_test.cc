// Attention of chunks of query tokens against its definition in double; and the float16 rows that it reads.
#include "kernels/cuda/rows/finish.h"
#include "kernels/cuda/rows/unpack.h"
#include "prompt/prompt_case.h"

namespace {

using namespace kvasir::cuda;
using namespace prompt_case;

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
  for (const int d : {48, 64, 80, 96, 112, 128}) {
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
  for (const int d : {96, 128}) {
    for (const PromptPrecision precision : kPrecisions) {
      Setting s = {d, 1, 2, 3, 6000, precision};
      s.part = 2048;
      check_prompt(s);
    }
  }
}

DEVICE_CASE("prompt: trees, caps, learned sinks and sums") {
  for (const int d : {64, 80, 96, 112, 128}) {
    for (const PromptPrecision precision :
         {PromptPrecision::kFast, PromptPrecision::kExact, PromptPrecision::kHalves}) {
      for (const int tokens : {5, 64}) {
        Setting s = {d, 2, 4, tokens, 400, precision};
        s.guesses = true;
        s.part = 150;
        s.sliding_window = tokens == 64 ? 100 : 0;
        check_prompt(s);
        s.guesses = false;
        s.soft_cap = 2.0f;
        s.ends = true;
        check_prompt(s);
      }
    }
  }
}

DEVICE_CASE("prompt: equal calls give equal bits") {
  Setting s = {128, 4, 4, 100, 3000};
  s.part = 1000;
  const Case made = make_case(s, 5);
  CHECK(run(s, made).outputs == run(s, made).outputs, describe(s));
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
