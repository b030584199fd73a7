// CommVQ's attention against the definition in double over what the pages stand for.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "commvq/attend_case.h"
#include "reference/attention.h"
#include "reference/half.h"

namespace {

using namespace commvq_case;
using kvasir::ElementType;
using kvasir::RopePairs;
using kvasir::cuda::KeyPrecision;

// What Precision promises (kvasir/config.h).
double bound_of(const Setting& s) { return s.precision == KeyPrecision::kExact ? 1e-6 : 1e-4; }

void check_attention(const Setting& s) {
  Batch batch(s);
  const std::vector<double> expected = batch.expected();
  // Outputs of 16 bits are rounded: by 2^-11 or 2^-8 of themselves at most.
  const double rounding = s.type == kvasir::ElementType::kFloat32   ? 0.0
                          : s.type == kvasir::ElementType::kFloat16 ? 1e-7
                                                                    : 6e-6;
  for (const bool generic : {true, false}) {
    if (!generic && !batch.plan().hopper) break;  // the same kernels
    const std::vector<float> got = batch.attend(generic);
    const double error = reference::nmse(got.data(), expected);
    std::printf("     %s slices=%dx%d hopper=%d: nmse %.1e\n", s.describe().c_str(),
                batch.plan().shape.tables.pair_slices, batch.plan().shape.tables.stage_slices,
                static_cast<int>(!generic), error);
    CHECK(error <= bound_of(s) + rounding, s.describe() << ": " << error);
    CHECK(batch.workspace_is_clear(), s.describe());
  }
}

constexpr KeyPrecision kBoth[] = {KeyPrecision::kExact, KeyPrecision::kFast};

DEVICE_CASE("CommVQ: head dims, entries, pairs, both precisions") {
  const int shapes[][3] = {{32, 5, 16}, {64, 11, 64}, {80, 7, 32}, {96, 11, 64}, {128, 11, 64}, {256, 22, 64}};
  for (const KeyPrecision precision : kBoth) {
    for (const auto& shape : shapes) {
      Setting s{2, 4, shape[0], shape[1], shape[2], 144};
      s.precision = precision;
      s.pairs = shape[0] % 64 == 0 ? RopePairs::kHalves : RopePairs::kNeighbours;
      s.lengths = {{3, 3, 21}};
      check_attention(s);
    }
  }
}

DEVICE_CASE("CommVQ: stages that need slices of pairs and of stages") {
  for (const KeyPrecision precision : kBoth) {
    for (const int stages : {1, 2, 21, 22, 33, 64}) {
      Setting s{2, 4, 128, stages, 64, 64};
      s.precision = precision;
      s.lengths = {{0, 2, 5}};
      check_attention(s);
    }
  }
}

DEVICE_CASE("CommVQ: groups of query heads, rows of the codebook") {
  const int shapes[][3] = {{1, 1, 16}, {3, 3, 272}, {2, 7, 512}, {8, 4, 1024}, {12, 4, 768}};
  for (const auto& shape : shapes) {
    Setting s{shape[0], shape[1], 64, 6, 64, shape[2]};
    s.lengths = {{1, 5, 30}};
    check_attention(s);
  }
}

DEVICE_CASE("CommVQ: a ragged batch in one launch") {
  for (const KeyPrecision precision : kBoth) {
    Setting s{2, 4, 128, 11, 64, 256};
    s.precision = precision;
    s.lengths = {{4, 9, 17}, {0, 0, 0}, {0, 1, 0}, {0, 0, 40}, {32, 40, 255, 0, 9}, {4, 3, 16, 127}, {0, 2, 1, 50}};
    check_attention(s);
  }
}

// Their blocks have different amounts of shared memory and run the same kernel.
DEVICE_CASE("CommVQ: plans of different sizes live side by side") {
  for (const KeyPrecision precision : kBoth) {
    Setting large{2, 4, 128, 11, 64, 256}, small{2, 4, 128, 3, 64, 256};
    for (Setting* setting : {&large, &small}) {
      setting->precision = precision;
      setting->lengths = {{0, 3, 9}};
    }
    Batch first(large), second(small);
    CHECK(first.plan().score_shared > second.plan().score_shared, large.describe());
    CHECK(reference::nmse(first.attend().data(), first.expected()) <= bound_of(large), large.describe());
    CHECK(reference::nmse(second.attend().data(), second.expected()) <= bound_of(small), small.describe());
  }
}

DEVICE_CASE("CommVQ: positions, far ones and shifted ones") {
  Setting s{2, 4, 64, 6, 64, 64, RopePairs::kNeighbours};
  s.magnitude = 1.2;
  // Tokens 0..1 are sinks; pages are tokens 2..385 or far later ones; shifts begin in sinks, tiles, pages and window.
  s.lengths = {{2, 3, 20, 0, 0, 1000003},
               {2, 3, 20, 0, 0, 0, {{1, 7}}},
               {2, 3, 20, 0, 0, 0, {{2, -2}, {21, 100}, {23, 90}, {40, 3000000}, {200, 5}, {390, -300}}},
               {2, 3, 20, 0, 0, 0, {{130, 1}, {131, 2}, {132, 3}, {133, 4}, {134, 5}, {135, 6}}}};
  for (const KeyPrecision precision : kBoth) {
    s.precision = precision;
    check_attention(s);
  }
}

DEVICE_CASE("CommVQ: numbers of 16 bits") {
  for (const kvasir::ElementType type : {kvasir::ElementType::kFloat16, kvasir::ElementType::kBFloat16}) {
    Setting s{2, 2, 128, 11, 64, 128};
    s.type = type;
    s.lengths = {{0, 2, 9}, {0, 0, 0}};
    check_attention(s);
  }
}

DEVICE_CASE("CommVQ: a long sequence in many parts, twice the same bits") {
  Setting s{8, 4, 128, 11, 64, 1024};
  s.lengths = {{4, 300, 100}};
  Batch batch(s);
  const std::vector<float> first = batch.attend(), second = batch.attend();
  CHECK(std::memcmp(first.data(), second.data(), 4 * first.size()) == 0, "equal input gives equal bits");
  const double error = reference::nmse(first.data(), batch.expected());
  CHECK(error <= 1e-6, error);
}

// Weights times gains are float16 numbers relative to a level, which follows what later pages of a part need.
DEVICE_CASE("CommVQ: gains of any size, from page to page") {
  const double gains[][2] = {{1e-6, 1.0}, {1e-5, 30.0}, {3e3, 0.05}, {1.0, 3.0}, {5e3, 1.0}};
  for (const auto& gain : gains) {
    Setting s{1, 3, 64, 6, 64, 1040};
    s.gain = gain[0];
    s.growth = gain[1];
    s.lengths = {{0, 300, 0, 77}, {3, 150, 9}};
    check_attention(s);
  }
}

DEVICE_CASE("CommVQ: shapes that are refused") {
  std::mt19937 random(1);
  const Setting s{1, 1, 64, 4, 64, 64};
  const KeyModel model(s, random);
  kvasir::cuda::KeyTableLayout layout = {};
  CUDA(plan_key_tables(model, KeyPrecision::kExact, &layout));
  kvasir::cuda::CommVqPlan plan;
  CHECK(plan_commvq({layout, RopePairs::kHalves, 0, 64, 1, 1}, &plan) == cudaErrorInvalidValue, "no query heads");
  CHECK(plan_commvq({layout, RopePairs::kHalves, 1, 24, 1, 1}, &plan) == cudaErrorInvalidValue, "24 codes");
  CHECK(plan_commvq({layout, RopePairs::kHalves, 1, 64, 0, 1}, &plan) == cudaErrorInvalidValue, "no sequences");
  CHECK(plan_commvq({layout, RopePairs::kHalves, 1, 64, 5000, 1}, &plan) == cudaErrorInvalidValue, "5000 sequences");
}

// Tables hold what the model holds, to half a step, and never a field that sums could overflow.
HOST_CASE("CommVQ: packed tables") {
  const Setting s{2, 1, 48, 5, 32, 64};
  std::mt19937 random(7);
  const KeyModel model(s, random);
  kvasir::cuda::KeyTableLayout layout = {2, 48, 5, 32, 5, 5, 2, 1, 2, 2, 3};
  std::vector<double> frequencies(24, 0.5);
  std::vector<uint8_t> packed(layout.bytes());
  pack_key_tables(model, layout, frequencies.data(), 2.0, packed.data());
  double worst = 0.0;
  int highest = 0;
  for (int h = 0; h < 2; ++h) {
    for (int pair = 0; pair < 24; ++pair) {
      const int pairs = layout.slice_pairs();
      for (int ss = 0; ss < 2; ++ss) {
        const uint8_t* slice = packed.data() + layout.slice_offset(h, pair / pairs, ss);
        float step;
        std::memcpy(&step, slice + 8 * pairs + 4 * (pair % pairs), 4);
        for (int part = 0; part < 2; ++part) {
          const auto number = [&](int stage, int e) {
            const uint8_t* at =
                slice + layout.head_bytes() + (stage * 64 + e) * layout.row_bytes() + (2 * (pair % pairs) + part) * 2;
            return at[0] | at[1] << 8;
          };
          const int stages = ss == 0 ? 3 : 2;
          int sum = 0;
          for (int r = 0; r < stages; ++r) {
            int largest = 0;
            for (int e = 0; e < 32; ++e) {
              largest = std::max(largest, number(r, e));
              const int channel = pair + 24 * part;
              const size_t row = ((static_cast<size_t>(h) * 3 + channel / 16) * 5 + 3 * ss + r) * 32;
              const double first = reference::half_value(model.memory[(row)*16 + channel % 16]);
              const double value = reference::half_value(model.memory[(row + e) * 16 + channel % 16]);
              const double packed_difference = (number(r, e) - number(r, 0)) * (step / 2.0);
              worst = std::max(worst, std::fabs(packed_difference - (value - first)) / (step / 2.0));
            }
            sum += largest;
          }
          highest = std::max(highest, sum);
        }
      }
    }
  }
  CHECK(worst <= 1.001, "differences of entries are off by " << worst << " steps");
  CHECK(highest <= 65535, highest);
}

}  // namespace
