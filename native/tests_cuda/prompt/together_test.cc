// Several prompts in one launch: each gets what it gets alone, bit for bit.
#include "prompt/prompt_case.h"

namespace {

using namespace prompt_case;

// What differs between prompts that go together.
struct Length {
  int tokens;
  int64_t length;
  int64_t part;
  bool guesses = false;
};

void check_together(const Setting& common, const std::vector<Length>& lengths, bool against_definition) {
  std::vector<Setting> settings;
  std::vector<Case> cases;
  for (const Length& each : lengths) {
    Setting s = common;
    s.tokens = each.tokens;
    s.length = each.length;
    s.part = each.part;
    s.guesses = each.guesses;
    settings.push_back(s);
    cases.push_back(make_case(s, static_cast<unsigned>(settings.size())));
  }
  const std::vector<Result> results = run(settings, cases);
  for (size_t i = 0; i < settings.size(); ++i) {
    const Result alone = run(settings[i], cases[i]);
    CHECK(results[i].outputs == alone.outputs, i << " of " << settings.size() << ", " << describe(settings[i]));
    CHECK(results[i].sums == alone.sums, "sums " << i << " of " << settings.size() << ", " << describe(settings[i]));
    if (against_definition) check_result(settings[i], cases[i], results[i]);
  }
}

// One token beside hundreds, trees beside chunks, contexts of some tokens and of thousands, in one part and in many.
const std::vector<Length> kRagged = {{1, 1, 1 << 20},         {700, 900, 1 << 20}, {65, 65, 1 << 20},
                                     {40, 333, 100, true},    {130, 1000, 256},    {1, 2000, 1 << 20},
                                     {64, 64, 1 << 20, true}, {200, 200, 64},      {33, 1500, 512}};

DEVICE_CASE("prompts together: ragged lengths, trees among chunks, every kernel") {
  for (const int d : {48, 80, 96, 128, 256}) {
    for (const PromptPrecision precision :
         {PromptPrecision::kFast, PromptPrecision::kExact, PromptPrecision::kHalves, PromptPrecision::kTurnedHalves}) {
      check_together({d, 1, 2, 0, 0, precision}, kRagged, d == 96);
    }
  }
}

DEVICE_CASE("prompts together: 16 bits, several kv heads") {
  for (const kvasir::ElementType type : {kvasir::ElementType::kFloat16, kvasir::ElementType::kBFloat16}) {
    check_together({128, 3, 5, 0, 0, PromptPrecision::kExact, type}, kRagged, false);
    check_together({96, 8, 4, 0, 0, PromptPrecision::kFast, type}, kRagged, false);
  }
}

DEVICE_CASE("prompts together: windows, caps, learned sinks and sums") {
  for (const int d : {64, 96, 128}) {
    for (const int64_t window : {0, 1, 90, 300}) {
      Setting s = {d, 2, 2, 0, 0, PromptPrecision::kExact};
      s.sliding_window = window;
      s.soft_cap = 3.0f;
      s.ends = true;
      check_together(s, kRagged, window == 90);
    }
  }
}

DEVICE_CASE("prompts together: more than one launch takes") {
  for (const int count : {31, 32, 33, 70}) {
    std::vector<Length> lengths;
    for (int i = 0; i < count; ++i) lengths.push_back({1 + i * 7 % 90, 90 + i * 13 % 200, 150});
    check_together({64, 2, 2, 0, 0, PromptPrecision::kExact}, lengths, count == 33);
  }
}

DEVICE_CASE("prompts together: those of different shapes are refused") {
  const Setting s = {64, 1, 2, 4, 4};
  const Case made = make_case(s, 1);
  DevicePrompt first(s, made, nullptr), second(s, made, nullptr);
  for (int what = 0; what < 4; ++what) {
    PromptPart parts[] = {first.part(0), second.part(0)};
    if (what == 1) parts[1].request.group = 1;
    if (what == 2) parts[1].request.precision = PromptPrecision::kTurnedHalves;
    if (what == 3) parts[1].request.sliding_window = 3;
    const cudaError_t error = launch_prompt_parts(parts, 2, nullptr);
    CHECK(error == (what == 0 ? cudaSuccess : cudaErrorInvalidValue), what << ": " << cudaGetErrorString(error));
    CUDA(cudaDeviceSynchronize());
  }
}

}  // namespace
